"""The inputs of a replay: quota files, and the relevant settings of the broker.

Owns the conversion of files and settings to proposals; it must never replay anything. Invariant: a
proposal contains the quotas that a broker with these settings would have after applying only this
file, and its name is unique. Kafka's ``ConfigCommand`` applies such quotas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from minibroker.broker.metadata.quotas import defaults
from minibroker.broker.quotas.file import QuotaFileError, parse
from minibroker.broker.settings import ConfigError, Settings
from minibroker.broker.settings.definitions import (
    CONNECTION_IP_THROTTLE_RECHECK,
    CONTROLLER_QUOTA_WINDOW_NUM,
    CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS,
    DELAY,
    QUOTA_THROTTLE_MODE,
    QUOTA_WINDOW_NUM,
    QUOTA_WINDOW_SIZE_SECONDS,
)
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.whatif.proposal import Counting, Proposal


def settings_of(pairs: Sequence[str]) -> Settings:
    """The broker's settings; raises BadInput."""
    try:
        return Settings.from_sources(pairs=pairs)
    except ConfigError as error:
        raise BadInput(str(error)) from error


def counting_of(settings: Settings) -> Counting:
    """The settings that affect how quotas are measured."""
    return Counting(
        settings[QUOTA_WINDOW_NUM],
        settings[QUOTA_WINDOW_SIZE_SECONDS],
        settings[CONTROLLER_QUOTA_WINDOW_NUM],
        settings[CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS],
        settings[QUOTA_THROTTLE_MODE] == DELAY,
        settings[CONNECTION_IP_THROTTLE_RECHECK],
    )


def proposal_of(text: str, name: str, settings: Settings) -> Proposal:
    """Parse the text of a quota file; raises BadInput."""
    try:
        file = parse(text, name)
        ips = file.ip_rates()
    except QuotaFileError as error:
        raise BadInput(str(error)) from error
    table = replace(file.table(), defaults=defaults(settings))
    return Proposal(name, table, ips.by_ip, ips.default)


def proposals_of(paths: Sequence[str], settings: Settings) -> list[Proposal]:
    """Read quota files; raises BadInput."""
    names = [Path(path).name for path in paths]
    if len(set(names)) < len(names):
        names = list(paths)
    if len(set(names)) < len(names):
        raise BadInput(
            "a quota file is given twice: give each file once, because results are labelled by file"
        )
    found = []
    for path, name in zip(paths, names, strict=True):
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{path} cannot be read as a quota file: {error}") from error
        found.append(proposal_of(text, name, settings))
    return found

"""``minibroker start``: start a broker with settings from options, the environment and a file.

Owns the conversion of options to settings. It must never know the parts of a broker. Invariant: an
option is equivalent to its setting and overrides it, so ``--listener`` overrides ``listeners`` in
the environment, which overrides the file. Kafka's ``kafka-server-start.sh`` has ``--override``.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minibroker.cli.commands import Command, examples
from minibroker.cli.output import BadConfig, InvalidUsage

if TYPE_CHECKING:
    from minibroker.broker.settings import Settings

EXAMPLES = examples(
    "minibroker start",
    "minibroker start --listener PLAINTEXT://127.0.0.1:0 --json",
    "minibroker start --data-dir ./data --config server.properties",
    "minibroker start --set num.partitions=3 --set log.retention.ms=60000",
    "minibroker start --listener INSIDE://127.0.0.1:9092 --listener OUTSIDE://0.0.0.0:9192",
    after="""Without --data-dir the data is in memory-backed storage where the system has it,
and is removed at the end. Stop it with Ctrl-C.""",
)


@click.command("start", cls=Command, epilog=EXAMPLES)
@click.option(
    "--listener",
    "listeners",
    multiple=True,
    metavar="NAME://HOST:PORT",
    help="Address for clients; may be repeated; port 0 chooses a free port. "
    "[default: PLAINTEXT://127.0.0.1:9092]",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Data directory. [default: a temporary directory]",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A server.properties file.",
)
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="One setting; may be repeated; wins over the file. See `minibroker settings`.",
)
@click.option(
    "--profile",
    default="laptop",
    metavar="PROFILE",
    help="Profile of defaults: laptop (few processes) or kafka.",
)
@click.option(
    "--control",
    metavar="HOST:PORT",
    help="Address of the HTTP control API. [default: a free port of 127.0.0.1]",
)
@click.option("--json", is_flag=True, help="Print one line of JSON when ready, and nothing else.")
@click.option(
    "--recover-topics-from-logs",
    is_flag=True,
    help="Recover topics that the config store has lost from the partitions in --data-dir.",
)
def start(
    listeners: Sequence[str],
    data_dir: Path | None,
    config: Path | None,
    pairs: Sequence[str],
    profile: str,
    control: str | None,
    json: bool,
    recover_topics_from_logs: bool,
) -> None:
    """Start a broker and run it until it is stopped."""
    hide_secrets(pairs)
    settings = read_settings(
        listeners=listeners,
        data_dir=data_dir,
        config=config,
        pairs=pairs,
        profile=profile,
        control=control,
    )
    if recover_topics_from_logs and settings.data_dir is None:
        raise InvalidUsage("--recover-topics-from-logs: requires --data-dir")
    # Imported modules live as long as the process; garbage collection need not scan them.
    gc.disable()
    from minibroker import launch

    gc.freeze()
    gc.enable()
    status = launch.start(settings, json_ready=json, rebuild_topics=recover_topics_from_logs)
    raise click.exceptions.Exit(status)


def hide_secrets(pairs: Sequence[str]) -> None:
    """Mask the values of sensitive settings in the process list."""
    from minibroker.broker.settings.setting import broker_setting

    secrets = []
    for pair in pairs:
        name, _, value = pair.partition("=")
        declared = broker_setting(name.strip())
        if declared is not None and declared.sensitive and not value.strip().startswith("${"):
            secrets.append(pair)
    if secrets:
        from minibroker.runtime.system import mask_arguments

        mask_arguments(secrets)


def read_settings(
    *,
    listeners: Sequence[str],
    data_dir: Path | None,
    config: Path | None,
    pairs: Sequence[str],
    profile: str,
    control: str | None,
) -> Settings:
    """Read settings from all sources. Raises `BadConfig`, which lists all problems."""
    from minibroker.broker.settings import (
        ConfigError,
        SettingEntry,
        Settings,
        read_pairs,
        read_properties,
    )
    from minibroker.broker.settings.environment import read_environment

    if config is not None and not config.exists():
        raise InvalidUsage(f"--config {config}: there is no such file")
    entries: list[SettingEntry] = []
    try:
        if config is not None:
            entries += read_properties(config)
        named, ignored = read_environment(os.environ)
        entries += named
        entries += read_pairs(pairs)
        if listeners:
            entries.append(SettingEntry("listeners", ",".join(listeners), "--listener"))
        if data_dir is not None:
            entries.append(SettingEntry("log.dirs", str(data_dir), "--data-dir"))
        if control is not None:
            entries.append(SettingEntry("control.listener", control, "--control"))
        return Settings.from_entries(entries, profile, ignored=ignored)
    except ConfigError as error:
        raise BadConfig("\n  ".join(["invalid settings:", *error.problems])) from None

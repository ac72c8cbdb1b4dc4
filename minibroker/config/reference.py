"""The reference of settings as a page of Markdown: ``python -m minibroker.config.reference``.

Owns the form of the page; every fact in it comes from the definitions.  It must never read a
running broker.  The invariant: ``docs/reference/settings.md`` is this program's output, which a
test compares.  Kafka generates its configuration page from ``ConfigDef`` in the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from minibroker.config import BROKER_SETTINGS, TOPIC_SETTINGS, Setting
from minibroker.config.known import KNOWN_UNSERVED
from minibroker.config.setting import listener_name
from minibroker.config.topics import synonyms_of

_OPENING = """\
# Settings

This page is generated from `minibroker/config/`; change the definitions and run \
`python -m minibroker.config.reference > docs/reference/settings.md`.

Settings are read from properties files (`--config server.properties`) and from options \
(`--set num.partitions=3`); an option wins over a file, a later one over an earlier one. \
`--profile kafka` takes Kafka's defaults where they differ; the column *default* shows them. \
Listeners and the data directory keep this broker's defaults in both profiles, so that a test \
broker neither opens a port to the network nor leaves files behind.

A name that nobody knows is refused, with the nearest valid name. A name that Kafka knows and \
this broker does not serve is named in one line of warning, so that a file written for Kafka \
starts this broker; those names stand at the end of this page.

What can be changed while the broker runs is so marked. `minibroker configs` or an admin \
client changes it, for one broker or for all; what is set for one broker wins over what is set for \
all, which wins over files and options.
"""


_TOPIC_OPENING = """\
Given when a topic is created. A topic that says nothing takes the broker's setting, the first \
one that is given."""


def _default(setting: Setting[Any]) -> str:
    if setting.default_text is not None:
        return setting.default_text
    text = f"`{setting.render(setting.default)}`" if setting.render(setting.default) else "empty"
    if setting.kafka_default != setting.default:
        text += f" (profile kafka: `{setting.render(setting.kafka_default)}`)"
    return text


def _description(setting: Setting[Any]) -> str:
    text = setting.doc
    if setting.no_effect:
        text += f" Accepted and reported, without effect: {setting.no_effect}."
    if setting.dynamic_at_listener:
        name = listener_name("<listener>", setting.name)
        text += f" *Can be renewed while the broker runs, as `{name}`.*"
    elif setting.dynamic:
        text += " *Can be changed while the broker runs.*"
    return text


def _rows(settings: Iterable[Setting[Any]]) -> Iterator[str]:
    for setting in settings:
        valid = f"; {setting.valid.text}" if setting.valid else ""
        yield (
            f"| `{setting.name}` | {setting.type.title}{valid} | {_default(setting)} | "
            f"{_description(setting)} |"
        )


def _topic_rows(settings: Iterable[Setting[Any]]) -> Iterator[str]:
    for setting in settings:
        valid = f"; {setting.valid.text}" if setting.valid else ""
        stand_ins = ", ".join(f"`{synonym.setting.name}`" for synonym in synonyms_of(setting))
        yield (
            f"| `{setting.name}` | {setting.type.title}{valid} | "
            f"{stand_ins or _default(setting)} | {_description(setting)} |"
        )


def page() -> str:
    """The whole page, ending with a newline."""
    lines = [
        _OPENING,
        "## Settings of the broker",
        "",
        "| name | value | default | what it does |",
        "| --- | --- | --- | --- |",
        *_rows(BROKER_SETTINGS.values()),
        "",
        "## Settings of topics",
        "",
        _TOPIC_OPENING,
        "",
        "| name | value | default, or the broker's setting | what it does |",
        "| --- | --- | --- | --- |",
        *_topic_rows(TOPIC_SETTINGS.values()),
        "",
        "## Settings of Kafka that are not served",
        "",
        *(f"- `{name}`" for name in sorted(KNOWN_UNSERVED)),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())

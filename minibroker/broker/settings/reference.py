"""The reference of settings as a page of Markdown: ``python -m
minibroker.broker.settings.reference``.

Owns the layout of the page; all content comes from the definitions.  It must never read a running
broker.  The invariant: ``docs/reference/settings.md`` is the output of this program (a test
compares them).  Kafka generates its configuration page from ``ConfigDef`` in the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS, Setting
from minibroker.broker.settings.names import KNOWN_UNSERVED
from minibroker.broker.settings.setting import listener_name
from minibroker.broker.settings.topics import synonyms_of

_OPENING = """\
# Settings

This page is generated from `minibroker/broker/settings/`; change the definitions and run \
`python -m minibroker.broker.settings.reference > docs/reference/settings.md`.

Configure the broker with properties files (`--config server.properties`), environment variables \
or options (`--set num.partitions=3`). Options take precedence over the environment, which takes \
precedence over files, and later entries over earlier ones. `--profile kafka` uses Kafka's \
defaults where they differ; the column *Default* shows both. \
Listeners and the data directory have the same defaults in both profiles, so a test broker neither \
opens a port to the network nor leaves files behind.

`minibroker start` takes each setting from `MINIBROKER_` and its name in upper case, with `_` for \
`.`, `-` and `_` (`MINIBROKER_NUM_PARTITIONS=3`), and from the names that Kafka's image takes: \
`KAFKA_`, with `_` for `.`, `__` for `_` and `___` for `-`, also in names for one listener \
(`KAFKA_LISTENER_NAME_OUTSIDE_SASL_ENABLED_MECHANISMS`). `MINIBROKER_` takes precedence over \
`KAFKA_`. An unknown name with `MINIBROKER_` is rejected; one with `KAFKA_` only if it resembles a \
setting, because applications have such variables too: a warning lists the others. \
Test brokers (`MiniBroker`) do not read the environment, except for `MINIBROKER_RUNTIME_PORTABLE`.

The broker rejects an unknown name and suggests the nearest valid one. Kafka settings that \
minibroker does not support cause one warning, so you can use a properties file written for Kafka. \
They are listed at the end of this page.

Settings that can be changed while the broker runs are marked. Change them with \
`minibroker configs` or an admin client, for one broker or for all. A value for one broker takes \
precedence over a value for all brokers, which takes precedence over files and options.
"""


_TOPIC_OPENING = """\
Set these configs when you create a topic, or later with `minibroker configs`. A config that is \
not set has the value of the broker setting; if there are several, the first one that is set."""


def _default(setting: Setting[Any]) -> str:
    if setting.default_text is not None:
        return setting.default_text
    text = f"`{setting.render(setting.default)}`" if setting.render(setting.default) else "empty"
    if setting.kafka_default not in (None, setting.default):
        text += f" (profile kafka: `{setting.render(setting.kafka_default)}`)"
    return text


def _description(setting: Setting[Any]) -> str:
    text = setting.doc
    if setting.no_effect:
        text += f" Accepted, but has no effect: {setting.no_effect}."
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
        synonyms = ", ".join(f"`{synonym.setting.name}`" for synonym in synonyms_of(setting))
        yield (
            f"| `{setting.name}` | {setting.type.title}{valid} | "
            f"{synonyms or _default(setting)} | {_description(setting)} |"
        )


def page() -> str:
    """Return the page, ending with a newline."""
    lines = [
        _OPENING,
        "## Broker settings",
        "",
        "| Name | Value | Default | Description |",
        "| --- | --- | --- | --- |",
        *_rows(BROKER_SETTINGS.values()),
        "",
        "## Topic configs",
        "",
        _TOPIC_OPENING,
        "",
        "| Name | Value | Broker setting, or default | Description |",
        "| --- | --- | --- | --- |",
        *_topic_rows(TOPIC_SETTINGS.values()),
        "",
        "## Kafka settings that are not supported",
        "",
        *(f"- `{name}`" for name in sorted(KNOWN_UNSERVED)),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())

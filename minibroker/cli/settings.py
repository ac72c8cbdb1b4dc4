"""``minibroker settings``: list and explain settings, from the definitions that the broker reads.

Owns the two views of the definitions. It must never contain a default or a description. Invariant:
the commands need no running broker. Kafka generates its documentation from ``ConfigDef``.
"""

from __future__ import annotations

import difflib
import textwrap
from typing import TYPE_CHECKING, Any, Final

import click

from minibroker.cli.commands import Argument, CommandGroup, examples
from minibroker.cli.output import InvalidUsage, emit, json_line, table

if TYPE_CHECKING:
    from minibroker.broker.settings import Setting

SIMILARITY_MIN: Final = 0.8
"""Minimum similarity of a suggested name: high enough for typing errors only."""

app = CommandGroup("settings", help="List and explain settings.", no_args_is_help=True)

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per setting."
)

LIST_EXAMPLES = examples(
    "minibroker settings list",
    "minibroker settings list retention",
    "minibroker settings list --topic",
    "minibroker settings list --json | jq -r .setting",
)

EXPLAIN_EXAMPLES = examples(
    "minibroker settings explain num.io.threads",
    "minibroker settings explain retention.ms",
)


def default_text(setting: Setting[Any]) -> str:
    """Format the default as in a file, or describe how it is computed."""
    if setting.default_text is not None:
        return setting.default_text
    return setting.render(setting.default)


def complete_settings(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a setting."""
    from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS

    names = sorted({*BROKER_SETTINGS, *TOPIC_SETTINGS})
    return [name for name in names if name.startswith(incomplete)]


@app.command("list", epilog=LIST_EXAMPLES)
@click.argument(
    "part", cls=Argument, default="", metavar="[PART]", about="Only names that contain this."
)
@click.option("--topic", is_flag=True, help="Settings of topics.")
@json_option
def list_(part: str, topic: bool, as_json: bool) -> None:
    """List the settings of the broker, or of topics, with their defaults."""
    from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS

    register = TOPIC_SETTINGS if topic else BROKER_SETTINGS
    found = [setting for setting in register.values() if part in setting.name]
    if not found:
        raise InvalidUsage(f"no setting has '{part}' in its name")
    if as_json:
        for setting in found:
            emit(_json("topic" if topic else "broker", setting))
        return
    rows = [(setting.name, setting.type.title, default_text(setting)) for setting in found]
    emit(table(("SETTING", "TYPE", "DEFAULT"), rows))


@app.command("explain", epilog=EXPLAIN_EXAMPLES)
@click.argument("name", cls=Argument, about="The setting.", shell_complete=complete_settings)
@json_option
def explain(name: str, as_json: bool) -> None:
    """Explain one setting: its effect, valid values and default."""
    from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS
    from minibroker.broker.settings.setting import is_unsupported_kafka_setting

    found = [
        (scope, register[name])
        for scope, register in (("broker", BROKER_SETTINGS), ("topic", TOPIC_SETTINGS))
        if name in register
    ]
    if not found:
        if is_unsupported_kafka_setting(name):
            raise InvalidUsage(f"{name} is a setting of Kafka that minibroker ignores")
        names = [*BROKER_SETTINGS, *TOPIC_SETTINGS]
        suggestions = difflib.get_close_matches(name, names, n=1, cutoff=SIMILARITY_MIN)
        hint = (
            f"; did you mean {suggestions[0]}?"
            if suggestions
            else "; see `minibroker settings list`"
        )
        raise InvalidUsage(f"there is no setting {name}{hint}")
    if as_json:
        for scope, setting in found:
            emit(_json(scope, setting))
        return
    emit("\n\n".join(_explanation(scope, setting) for scope, setting in found))


def _json(scope: str, setting: Setting[Any]) -> str:
    kafka = setting.kafka_default
    return json_line(
        {
            "setting": setting.name,
            "of": scope,
            "type": setting.type.title,
            "default": default_text(setting),
            "profile_kafka": None if kafka is None else setting.render(kafka),
            "valid": None if setting.valid is None else setting.valid.text,
            "no_effect": setting.no_effect or None,
            "doc": setting.doc,
        }
    )


def _explanation(scope: str, setting: Setting[Any]) -> str:
    lines = [f"{setting.name} ({setting.type.title}, of a {scope})", ""]
    lines += [textwrap.fill(setting.doc, 90, initial_indent="  ", subsequent_indent="  "), ""]
    lines.append(f"  default         {default_text(setting)}")
    if setting.kafka_default not in (None, setting.default):
        lines.append(f"  profile kafka   {setting.render(setting.kafka_default)}")
    if setting.valid is not None:
        lines.append(f"  must be         {setting.valid.text}")
    if setting.no_effect:
        lines.append(f"  has no effect   {setting.no_effect}")
    return "\n".join(lines)

"""Reference page of fault rules, and their plain list, generated from their one definition.

Owns the layout of ``docs/reference/faults.md``, which ``lab.reference`` prints, and of the plain
list of the command line. It must never describe an action or a field itself. Invariant: the
committed page is the output of this module (a test compares them). Kafka has no equivalent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from minibroker.broker.apis.registry import APIS
from minibroker.lab.control.actions import BROKER_ACTIONS, BrokerAction
from minibroker.lab.faults.actions import ACTIONS
from minibroker.lab.faults.fault_rule import RULES_MAX, WHEN_FIELDS, FaultRule
from minibroker.lab.faults.places import (
    CLIENT_FIELDS,
    CONNECTION_FIELDS,
    ENTITY_FIELDS,
    POINTS,
    REQUEST_FIELDS,
)
from minibroker.lab.schema import component, record_fields, summary
from minibroker_protocol import registry
from minibroker_protocol.entities import selectable
from minibroker_protocol.registry import ApiKey

_INTRODUCTION: Final = """\
# Fault rules

<!-- Written by `make docs`; don't edit. -->

A fault rule is a flat JSON object: an action with its fields, selectors, and when the rule fires.
Add one with `POST /v1/faults` of the [control API](control-api.md), with
`broker.faults.add(action, field=value)` or with `minibroker faults add ACTION FIELD=VALUE`.
[The guide](../guides/faults.md) has examples.

- All selectors of a rule must match, those of entities at the same entity. A request that does not
  have a selected field does not match.
- Rules are asked in the order in which they were added. `delay`, `hold`, `throttle` and `observe`
  all fire. Of the other actions the first one that fires decides about the entities that it
  matches, and later ones neither count nor fire for these.
- A rule fires only where it changes something: the response of this API, version and request, its
  time, or the connection. A rule that can change nothing in the selected versions is rejected.
  Rules are counted where they happen: with `at=after`, when the work is done.
- Counts are exact over all processes and connections of the broker.
- At most %(rules)s rules are set. They end with the broker. They, their counts and what they hold
  survive a killed controller; a match that it was just deciding about may count twice.
- While a rule selects topics or partitions of fetches, or changes their responses, the broker keeps
  no fetch sessions: every fetch names all its partitions.
- A request that already waits when a rule is added is not affected.
- Before a connection is authenticated, its principal is `User:ANONYMOUS`, and its ApiVersions,
  SaslHandshake and SaslAuthenticate requests can be selected; a token without a header, which
  follows a SaslHandshake of version 0, cannot.
"""

_GROUPS: Final = (
    ("Requests", REQUEST_FIELDS),
    ("Clients", CLIENT_FIELDS),
    ("Connections", CONNECTION_FIELDS),
    ("Entities of requests", (*ENTITY_FIELDS, "namespace")),
)


def page() -> str:
    """The whole page as Markdown."""
    lines = [
        _INTRODUCTION % {"rules": f"{RULES_MAX:,}"},
        *_actions(),
        *_points(),
        *_fields("Fields of actions", _action_fields()),
        "## Selectors",
        "",
    ]
    for title, names in _GROUPS:
        lines += _fields(title, names, level=3)
    lines += [*_fields("When a rule fires", WHEN_FIELDS), *_apis(), *_broker_actions()]
    return "\n".join(lines).rstrip() + "\n"


def plain_lines() -> Iterator[str]:
    """The actions and fields as plain text."""
    yield "ACTIONS"
    for name, kind in ACTIONS.items():
        yield f"  {name:<14} {summary(kind)}"
        if fields := record_fields(kind):
            yield f"  {'':<14} fields: {_words(fields)}"
    yield ""
    yield "HOLD POINTS"
    for name, point in POINTS.items():
        yield f"  {name:<26} {point.summary}"
    yield ""
    yield "ACTIONS OF THE BROKER, NOW (faults act)"
    for name, action in BROKER_ACTIONS.items():
        yield f"  {name:<19} {summary(action)}"
        yield f"  {'':<19} fields: {_words(record_fields(action))}"
    for title, names in (
        ("FIELDS OF ACTIONS", _action_fields()),
        *((f"SELECTORS: {title.upper()}", names) for title, names in _GROUPS),
        ("WHEN A RULE FIRES", WHEN_FIELDS),
    ):
        yield ""
        yield title
        for name in names:
            yield f"  {name:<17} {_schema(name).get('description', '')}"


def fields_json() -> dict[str, object]:
    """The same as `plain_lines`, by kind; a field is mapped to its description."""
    names = {
        "actions": _action_fields(),
        **{title.lower(): list(names) for title, names in _GROUPS},
        "when": list(WHEN_FIELDS),
    }
    return {
        "actions": {
            name: {"summary": summary(kind), "fields": record_fields(kind)}
            for name, kind in ACTIONS.items()
        },
        "hold_points": {name: point.summary for name, point in POINTS.items()},
        "broker_actions": {
            name: {"summary": summary(action), "fields": record_fields(action)}
            for name, action in BROKER_ACTIONS.items()
        },
        "fields": {
            kind: {name: _schema(name).get("description", "") for name in fields}
            for kind, fields in names.items()
        },
    }


def _words(fields: Mapping[str, bool]) -> str:
    return " ".join(name if is_needed else f"[{name}]" for name, is_needed in fields.items())


def _action_fields() -> list[str]:
    used = {field: None for kind in ACTIONS.values() for field in record_fields(kind)}
    return ["name", *used]


def _actions() -> Iterator[str]:
    yield "## Actions"
    yield ""
    yield "| Action | What it does | Fields | `at` |"
    yield "| --- | --- | --- | --- |"
    for name, kind in ACTIONS.items():
        places = ", ".join(f"`{place}`" for place in kind.places)
        yield f"| `{name}` | {summary(kind)} | {_needs(kind)} | {places} |"
    yield ""
    yield "The first value of `at` is the default. Fields in parentheses are optional."
    yield ""


def _points() -> Iterator[str]:
    yield "## Hold points"
    yield ""
    yield "A rule `hold` with a `point` holds what passes there. What it holds is in `holds`."
    yield ""
    yield "| Point | What is held | Selectors |"
    yield "| --- | --- | --- |"
    for name, point in POINTS.items():
        selectors = ", ".join(f"`{each}`" for each in point.selectors)
        yield f"| `{name}` | {point.summary} | {selectors} |"
    yield ""


def _needs(kind: type) -> str:
    """The fields of an action; its place has a column of its own."""
    fields = {name: is_needed for name, is_needed in record_fields(kind).items() if name != "at"}
    return ", ".join(
        f"`{name}`" if is_needed else f"(`{name}`)" for name, is_needed in fields.items()
    )


def _schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = component(FaultRule)["properties"][name]
    return found


def _fields(title: str, names: Iterable[str], level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {title}"
    yield ""
    yield "| Field | Type | Meaning |"
    yield "| --- | --- | --- |"
    for name in names:
        schema = _schema(name)
        yield f"| `{name}` | {_type(schema)} | {schema.get('description', '')} |"
    yield ""


def _type(schema: dict[str, Any]) -> str:
    inner = schema["anyOf"][0] if "anyOf" in schema else schema
    if "enum" in inner:
        return ", ".join(f"`{value}`" for value in inner["enum"])
    if "minimum" in inner:
        return f"{inner['type']}, {inner['minimum']} to {inner['maximum']}"
    return str(inner["type"])


def _broker_actions() -> Iterator[str]:
    yield ""
    yield "## Actions of the broker, now"
    yield ""
    yield "`POST /v1/actions`, `broker.faults.act(action, field=value)` and `minibroker faults act`"
    yield "let the broker do something at once. The answer comes when it is done."
    yield ""
    yield "| Action | What it does | Fields |"
    yield "| --- | --- | --- |"
    for name, kind in BROKER_ACTIONS.items():
        yield f"| `{name}` | {summary(kind)} | {_needs(kind)} |"
    yield ""
    yield "| Field | Type | Meaning |"
    yield "| --- | --- | --- |"
    for name, schema in component(BrokerAction)["properties"].items():
        if name != "action":
            yield f"| `{name}` | {_type(schema)} | {schema.get('description', '')} |"
    yield ""


def _apis() -> Iterator[str]:
    yield "## Entities of each API"
    yield ""
    yield "Requests of other APIs name no entities."
    yield ""
    yield "| API | Selectors |"
    yield "| --- | --- |"
    for key in APIS:
        known = selectable(registry.schema(key).request)
        names = [name for name, entity in ENTITY_FIELDS.items() if entity in known]
        if names:
            yield f"| {ApiKey(key).name} | {', '.join(f'`{name}`' for name in names)} |"

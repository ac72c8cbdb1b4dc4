"""``minibroker faults``: add, list, wait for, release and remove fault rules.

Owns these commands and the spelling of a rule as words. It must never know what a rule does; the
broker checks it. Invariant: the help lists every action and field of the one definition of rules.
Kafka's Trogdor has ``trogdor.sh client``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from minibroker.cli.commands import Argument, CommandGroup, examples
from minibroker.cli.control import Connect, control_option
from minibroker.cli.output import InvalidUsage, emit, json_line, note, table
from minibroker.client.control import target_of

PATH: Final = ("v1", "faults")
MARGIN_S: Final = 5.0
"""How much longer than the broker a command waits."""

app = CommandGroup(
    "faults",
    help="Make the broker misbehave on request: errors, delays, disconnects.",
    no_args_is_help=True,
)

ADD_EXAMPLES = examples(
    "minibroker faults add error api=Produce topic=orders error=NOT_ENOUGH_REPLICAS first=2",
    "minibroker faults add disconnect api=Produce at=after nth=1",
    "minibroker faults add delay api=Fetch client_id='report-*' delay_ms=500",
    "minibroker faults add throttle throttle_ms=2000 mute=false",
    "minibroker faults add replace api=Metadata response='{\"controller_id\": 7}'",
    "minibroker faults add hold point=transaction.prepared transactional_id=orders name=tx",
    'minibroker faults add \'{"action": "hold", "api": "JoinGroup", "name": "joins"}\'',
    after="`minibroker faults fields` lists all actions and fields.",
)
ACT_EXAMPLES = examples(
    "minibroker faults act rebalance group=orders",
    "minibroker faults act expire_member group=orders member=consumer-1-5f0c",
    "minibroker faults act assign group=orders "
    """assignment='{"consumer-1-5f0c": {"cats": [0, 1]}}'""",
    "minibroker faults act expire_acquisition group=packers topic=orders partition=0",
    "minibroker faults act expire_transaction transactional_id=orders-0",
    "minibroker faults act roll topic=cats partition=0",
    "minibroker faults act pause process=worker-0 pause_ms=2000",
    after="`minibroker faults fields` lists all actions and fields.",
)
LIST_EXAMPLES = examples(
    "minibroker faults list",
    "minibroker faults list --json",
)
REMOVE_EXAMPLES = examples(
    "minibroker faults remove 1 joins",
    "minibroker faults remove --all",
)
WAIT_EXAMPLES = examples(
    "minibroker faults wait 1",
    "minibroker faults wait joins --hits 2 --timeout 30",
)


def rule_of(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the rule that words describe: a JSON object, or an action and ``field=value``."""
    from minibroker.lab.faults.fault_rule import FaultRule

    return fields_of_words(words, FaultRule)


def fields_of_words(words: tuple[str, ...], kind: type) -> dict[str, Any]:
    """Return the fields of a rule or action, with values of the types that ``kind`` has."""
    types = _types(kind)
    first, *rest = words
    if first.startswith("{"):
        if rest:
            raise InvalidUsage("no words may follow a JSON object")
        return dict(_json(first))
    rule: dict[str, Any] = {"action": first}
    for word in rest:
        name, equals, text = word.partition("=")
        if not equals:
            raise InvalidUsage(f"{word!r} is not field=value; see `minibroker faults fields`")
        if name in rule:
            raise InvalidUsage(f"{name} is given twice")
        rule[name] = _value(types.get(name, ()), text)
    return rule


def _value(types: Sequence[str], text: str) -> Any:
    """The value of a field: of a type that the field may have."""
    if "object" in types:
        return _json(text)
    if "boolean" in types and text in {"true", "false"}:
        return text == "true"
    for kind, convert in (("integer", int), ("number", float)):
        if kind in types:
            try:
                return convert(text)
            except ValueError:
                return text
    return text


def _types(kind: type) -> dict[str, list[str]]:
    from minibroker.lab.schema import component

    return {
        name: [each.get("type", "") for each in schema.get("anyOf", [schema])]
        for name, schema in component(kind)["properties"].items()
    }


def _json(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidUsage(f"{text!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidUsage(f"{text!r} is not a JSON object")
    return found


json_option: Callable[[Any], Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object."
)


def _words_argument(about: str) -> Callable[[Any], Any]:
    metavar = "ACTION [FIELD=VALUE]..."
    return click.argument(
        "words", cls=Argument, nargs=-1, required=True, metavar=metavar, about=about
    )


fault_argument: Callable[[Any], Any] = click.argument(
    "fault_id", cls=Argument, metavar="ID", about="The rule."
)


@app.command("add", epilog=ADD_EXAMPLES)
@_words_argument("The rule, or a JSON object.")
@control_option
@json_option
def add(words: tuple[str, ...], connect: Connect, as_json: bool) -> None:
    """Add a fault rule and print its id; every connection obeys it from then on."""
    rule = rule_of(words)
    with connect() as api:
        added = json.loads(api.request("POST", target_of(PATH), rule))
    emit(json_line(added) if as_json else added["id"])


@app.command("act", epilog=ACT_EXAMPLES)
@_words_argument("The action, or a JSON object.")
@control_option
@json_option
def act(words: tuple[str, ...], connect: Connect, as_json: bool) -> None:
    """Let the broker do something now, e.g. rebalance a group; returns when it is done."""
    from minibroker.lab.control.actions import BrokerAction

    action = fields_of_words(words, BrokerAction)
    with connect() as api:
        answer = json.loads(api.request("POST", target_of(("v1", "actions")), action))
    emit(json_line(answer) if as_json else f"affected {answer['affected']}")


@app.command("list", epilog=LIST_EXAMPLES)
@control_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def list_(connect: Connect, as_json: bool) -> None:
    """List fault rules and how often each one fired."""
    with connect() as api:
        found = api.get(*PATH)["faults"]
    if as_json:
        for fault in found:
            emit(json_line(fault))
    elif found:
        rows = [
            (each["id"], each["matches"], each["hits"], each["held"], _words(each["rule"]))
            for each in found
        ]
        emit(table(("ID", "MATCHES", "HITS", "HELD", "RULE"), rows))
    else:
        note("no fault rules; add one with `minibroker faults add`")


def _words(rule: dict[str, Any]) -> str:
    fields = [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in rule.items()
        if name not in {"action", "name"}
    ]
    return " ".join([rule["action"], *fields])


@app.command("wait", epilog=WAIT_EXAMPLES)
@fault_argument
@control_option
@click.option("--hits", type=click.IntRange(0), default=1, help="Hits to wait for.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, 600),
    default=10.0,
    metavar="SECONDS",
    help="Longest wait, in real time.",
)
@click.option("--json", "_", is_flag=True, help="Print one JSON object, as without the option.")
def wait(fault_id: str, connect: Connect, hits: int, timeout: float, _: bool) -> None:
    """Wait until a fault rule has fired; fail if it does not in time."""
    query = {"hits": hits, "timeout_ms": int(timeout * 1000)}
    target = target_of((*PATH, fault_id, "wait"), query)
    with connect() as api:
        found = json.loads(api.request("GET", target, timeout_s=timeout + MARGIN_S))
    emit(json_line(found))


@app.command("release", epilog=examples("minibroker faults release joins"))
@fault_argument
@control_option
@json_option
def release(fault_id: str, connect: Connect, as_json: bool) -> None:
    """Release what a fault rule holds."""
    with connect() as api:
        answer = api.post(*PATH, fault_id, "release")
    emit(json_line(answer) if as_json else f"released {answer['released']}")


@app.command("remove", epilog=REMOVE_EXAMPLES)
@click.argument("fault_ids", cls=Argument, nargs=-1, metavar="[ID]...", about="The rules.")
@click.option("--all", "is_all", is_flag=True, help="Remove all rules.")
@control_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each rule.")
def remove(fault_ids: tuple[str, ...], is_all: bool, connect: Connect, as_json: bool) -> None:
    """Remove fault rules, and release what they hold."""
    if is_all == bool(fault_ids):
        raise InvalidUsage("name the rules to remove, or pass --all")
    with connect() as api:
        removed = fault_ids
        if is_all:
            removed = tuple(each["id"] for each in api.get(*PATH)["faults"]) if as_json else ()
            api.delete(*PATH)
        for fault_id in fault_ids:
            api.delete(*PATH, fault_id)
    if as_json:
        for fault_id in removed:
            emit(json_line({"id": fault_id, "removed": True}))


@app.command("fields", epilog=examples("minibroker faults fields"))
@json_option
def fields(as_json: bool) -> None:
    """List all actions and fields of fault rules."""
    from minibroker.lab.control.fault_reference import fields_json, plain_lines

    if as_json:
        emit(json_line(fields_json()))
        return
    for line in plain_lines():
        emit(line)

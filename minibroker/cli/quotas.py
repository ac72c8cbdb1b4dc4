"""``minibroker quotas``: usage of quotas, and reasons for throttling.

Owns the output; ``minibroker configs`` sets quotas, and the broker enforces them. Invariant: the
output is one response of the control API, so its figures are consistent. Kafka has no counterpart;
it exposes MBeans.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote_plus

import click

from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, limit_text, measured_text
from minibroker.cli.commands import CommandGroup, examples
from minibroker.cli.control import Connect, control_option
from minibroker.cli.output import emit, table
from minibroker.client.control import target_of

UNITS: Final = {kind.row.control_name: kind.row.unit for kind in CLIENT_QUOTA_TYPES}

LIST_EXAMPLES = examples(
    "minibroker quotas list",
    "minibroker quotas list --json | jq '.uses[] | select(.share > 1)'",
    after="To set one: "
    "minibroker configs --client reports --alter --add-config consumer_byte_rate=1048576",
)
EXPLAIN_EXAMPLES = examples(
    "minibroker quotas explain --client-id reports --type fetch",
    "minibroker quotas explain --user alice --type request --json",
    "minibroker quotas explain --throttle last",
)

THROTTLES_MAX = 10
"""Number of recent throttles to list."""

app = CommandGroup(
    "quotas",
    help="Show usage of quotas, and why a client is throttled.",
    no_args_is_help=True,
)

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the response of the control API."
)


@app.command("list", epilog=LIST_EXAMPLES)
@control_option
@json_option
def list_(connect: Connect, as_json: bool) -> None:
    """Show usage of quotas, most recently active first."""
    answer = _ask(connect, "quotas")
    if as_json:
        emit(answer)
        return
    found = json.loads(answer)
    if not found["counting"]:
        emit("No quota was set since the broker's start, so usage is not measured.")
        return
    rows = [_row(use) for use in found["uses"]]
    emit(table(["TYPE", "USER", "CLIENT-ID", "RATE", "QUOTA", "USED", "THROTTLE", "SET AT"], rows))
    if found["throttles"]:
        rows = [_throttled(each) for each in found["throttles"][:THROTTLES_MAX]]
        emit("\nRecent throttles, explained by `minibroker quotas explain --throttle NUMBER`:")
        emit(table(["NUMBER", "AGO", "TYPE", "USER", "CLIENT-ID", "API", "THROTTLE"], rows))


def _row(use: dict[str, Any]) -> list[str]:
    unit = UNITS[use["type"]]
    return [
        use["type"],
        unquote_plus(use["user"]) or "-",
        use["client_id"] or "-",
        f"{measured_text(use['rate'])} {unit}",
        "-" if use["quota"] is None else f"{limit_text(use['quota'])} {unit}",
        "-" if use["share"] is None else f"{use['share']:.0%}",
        "-" if use["throttle_ms"] is None else f"{use['throttle_ms']:.0f} ms",
        use["path"] or "-",
    ]


def _throttled(throttle: dict[str, Any]) -> list[str]:
    return [
        str(throttle["number"]),
        f"{throttle['ago_ms']} ms",
        throttle["type"],
        unquote_plus(throttle["user"]) or "-",
        throttle["client_id"] or "-",
        throttle["api"],
        f"{throttle['throttle_ms']} ms",
    ]


@app.command("explain", epilog=EXPLAIN_EXAMPLES)
@control_option
@json_option
@click.option("--user", default="ANONYMOUS", metavar="NAME", help="The principal's name.")
@click.option("--client-id", default="", metavar="ID", help="The client-id. [default: none]")
@click.option(
    "--type", "kind", type=click.Choice(list(UNITS)), default="produce", help="Type of the quota."
)
@click.option(
    "--throttle",
    metavar="NUMBER|last",
    help="Number of a recent throttle, instead of user, client-id and type.",
)
def explain(
    connect: Connect, as_json: bool, user: str, client_id: str, kind: str, throttle: str | None
) -> None:
    """Explain why a user and client-id is throttled or not, or why a request was throttled."""
    question = {"user": user, "client_id": client_id, "type": kind}
    asked = question if throttle is None else {"throttle": throttle}
    answer = _ask(connect, "quotas", "explain", query=asked)
    if as_json:
        emit(answer)
        return
    for line in _explanation(json.loads(answer)):
        emit(line)


def _explanation(found: dict[str, Any]) -> Iterator[str]:
    unit, throttle = UNITS[found["type"]], found["throttle"]
    user = "any user" if found["user"] is None else f"user '{found['user']}'"
    client = "any client-id" if found["client_id"] is None else f"client-id '{found['client_id']}'"
    yield f"{found['key']} of {user}, {client}"
    if throttle is not None:
        yield ""
        yield (
            f"Throttle {throttle['number']}: a {throttle['api']} request {throttle['ago_ms']} ms"
            f" ago was throttled for {throttle['throttle_ms']} ms."
        )
    yield ""
    yield f"Sharing: {found['sharing']}."
    yield ""
    rows = [
        [
            ">" if level["holds"] else "",
            level["path"],
            "-" if level["value"] is None else limit_text(level["value"]),
            level["why"],
        ]
        for level in found["levels"]
    ]
    yield table(["", "SET AT", "QUOTA", "REASON"], rows)
    yield ""
    if found["samples"]:
        rows = [[f"{at['ago_ms']} ms ago", measured_text(at["total"])] for at in found["samples"]]
        yield table(["SAMPLE STARTED", "RECORDED"], rows)
        yield ""
    yield f"Rate:     {measured_text(found['rate'])} {unit} over {found['window_ms']} ms"
    quota = "none" if found["quota"] is None else f"{limit_text(found['quota'])} {unit}"
    yield f"Quota:    {quota}"
    of = "for a request without usage of its own" if throttle is None else "at that time"
    yield f"Throttle: {found['throttle_ms']} ms {of}"
    yield f"          {found['formula']}"


def _ask(connect: Connect, *path: str, query: dict[str, str] | None = None) -> str:
    with connect() as api:
        return api.request("GET", target_of(("v1", *path), query)).decode().rstrip("\n")

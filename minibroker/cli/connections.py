"""``minibroker connections``: show current and rejected connections, live.

Owns the command, the content of the view, its order, and what is omitted on small terminals.
Invariant: the lines fit the given size, and omissions are marked; each interval costs the broker
one request. Kafka has no such view; ``ss`` with ``top`` is similar.
"""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import click

from minibroker.broker.connections.limits import client_ip
from minibroker.broker.quotas.types import limit_text
from minibroker.cli.commands import Command, examples
from minibroker.cli.control import Connect, control_option
from minibroker.cli.output import emit, printable
from minibroker.cli.screen import (
    ELLIPSIS,
    Emphasis,
    Line,
    TextPiece,
    ViewSize,
    cut,
    narrowed,
    show_view,
    view_table,
)
from minibroker.client.control import target_of

Answer: TypeAlias = dict[str, Any]
"""The JSON of ``GET /v1/connections``."""

NO_SETTINGS: Final = {"processors": "a free slot", "tokens": "tokens of other processors"}
"""Reasons for waiting that are not settings."""
USED, FREE = "▮", "▯"
WRAPPED_MIN: Final = 20
STATES_SHOWN_MAX: Final = 4
USERS_SHOWN_MAX: Final = 2
USER_WIDTH_MAX: Final = 24
"""Characters of one user's name."""
ANONYMOUS: Final = "User:ANONYMOUS"
UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
DRAWN_SLOTS_FROM: Final = 70
"""Minimum width in columns for drawing slots instead of only counting them."""


def render_view(answer: Answer, size: ViewSize) -> list[Line]:
    """Format the response as lines that fit into ``size``."""
    head = [
        *_total(answer),
        (),
        *_listeners(answer["listeners"]),
        *_waits(answer),
        (),
        *_processors(answer["processors"], drawn=_is_wide(size)),
        (),
    ]
    rejections = _rejections(answer["rejections"], size.columns)
    rejections = [*_unserved(answer["unserved"], size.columns), *rejections]
    addresses = _addresses(answer, with_users=_is_wide(size))
    if size.lines is not None:
        left = size.lines - len(head) - 1
        rejections = cut(rejections, max(left // 2, left - len(addresses)))
        addresses = cut(addresses, left - len(rejections))
    lines = [*head, *addresses, (), *rejections]
    if size.lines is not None:
        lines = cut(lines, size.lines)
    return lines if size.columns is None else [narrowed(line, size.columns) for line in lines]


def _is_wide(size: ViewSize) -> bool:
    return size.columns is None or size.columns >= DRAWN_SLOTS_FROM


def _total(answer: Answer) -> Iterator[Line]:
    sharded = answer["mode"] == "sharded"
    yield (
        _of(answer["total"], answer["limit"]),
        TextPiece(
            " connection, " if (answer["total"], answer["limit"]) == (1, None) else " connections, "
        ),
        _rate(answer["rate"], answer["rate_limit"]),
        TextPiece(
            " new ones a second, accepted by " + ("processors" if sharded else "one acceptor")
        ),
    )


def _of(count: int, limit: int | None) -> TextPiece:
    """Format a count with its limit."""
    if limit is None:
        return TextPiece(str(count))
    return TextPiece(f"{count}/{limit}", Emphasis.ALARM if count >= limit else Emphasis.PLAIN)


def _rate(rate: float | None, limit: float | None) -> TextPiece:
    if rate is None:
        return TextPiece("-")
    if limit is None:
        return TextPiece(f"{rate:.1f}")
    return TextPiece(
        f"{rate:.1f}/{limit_text(limit)}", Emphasis.ALARM if rate >= limit else Emphasis.PLAIN
    )


def _waiting(count: int) -> TextPiece:
    return TextPiece(str(count), Emphasis.WARNING if count else Emphasis.PLAIN)


# Tables -------------------------------------------------------------------------------------


def _listeners(listeners: Sequence[Answer]) -> list[Line]:
    return view_table(
        ("LISTENER", "CONNECTIONS", "NEW/S", "BLOCKED", "WAITING", "HELD", "ADDRESS"),
        [
            (
                TextPiece(each["listener"] + (" (protected)" if each["protected"] else "")),
                _of(each["connections"], each["limit"]),
                _rate(each["rate"], each["rate_limit"]),
                TextPiece(
                    f"{each['blocked_share']:.0%}",
                    Emphasis.WARNING if each["blocked_share"] >= 0.005 else Emphasis.PLAIN,
                ),
                _waiting(each["waiting"]),
                _waiting(each["held"]),
                TextPiece(_host_port(each["host"], each["port"])),
            )
            for each in listeners
        ],
        right="CONNECTIONS NEW/S BLOCKED WAITING HELD",
    )


def _waits(answer: Answer) -> Iterator[Line]:
    """Show why listeners wait, if the broker still has the event."""
    newest = {
        each["listener"]: each for each in answer["connection_events"] if each["kind"] == "waiting"
    }
    for listener in answer["listeners"]:
        each = newest.get(listener["listener"])
        if listener["waiting"] and each is not None:
            reason = NO_SETTINGS.get(each["reason"], each["reason"])
            text = f"{each['listener']} waits for {reason}, since {ago(each['ago_ms'])}"
            yield (TextPiece(text, Emphasis.WARNING),)


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _processors(processors: Sequence[Answer], *, drawn: bool) -> list[Line]:
    return view_table(
        ("PROCESSOR", "SLOTS", "CONNECTIONS", "STATE"),
        [
            (
                TextPiece(each["processor"]),
                _slots(each["slots_used"], each["slots_total"], drawn=drawn),
                TextPiece(str(each["connections_total"])),
                TextPiece(_states(each["connections"])),
            )
            for each in processors
        ],
        right="CONNECTIONS",
    )


def _slots(used: int, total: int, *, drawn: bool) -> TextPiece:
    if not total:
        return TextPiece("-")
    text = f"{used}/{total}"
    if drawn:
        text = f"{USED * used}{FREE * (total - used)} {text}"
    return TextPiece(text, Emphasis.WARNING if used else Emphasis.PLAIN)


def _states(connections: Iterable[Answer]) -> str:
    """Count connections by the API in flight or by state, most frequent first."""
    counted = Counter(each["in_flight"] or each["state"] for each in connections)
    shown = [f"{count} {what}" for what, count in counted.most_common(STATES_SHOWN_MAX)]
    return ", ".join([*shown, ELLIPSIS] if len(counted) > STATES_SHOWN_MAX else shown)


_ADDRESS_HEADINGS: Final = ("CLIENT", "CONNECTIONS", "NEW/S", "OLDEST")


def _users(connections: Iterable[Answer]) -> str:
    """List users by number of connections, with names made printable."""
    counted = Counter(each["principal"] for each in connections)
    shown = [
        printable(name.removeprefix("User:")) for name, _ in counted.most_common(USERS_SHOWN_MAX)
    ]
    cut = [f"{n[: USER_WIDTH_MAX - 1]}{ELLIPSIS}" if len(n) > USER_WIDTH_MAX else n for n in shown]
    return ", ".join([*cut, ELLIPSIS] if len(counted) > USERS_SHOWN_MAX else cut)


def _addresses(answer: Answer, *, with_users: bool) -> list[Line]:
    by_ip: defaultdict[str, list[Answer]] = defaultdict(list)
    for processor in answer["processors"]:
        for connection in processor["connections"]:
            by_ip[_ip(connection["client_address"])].append(connection)
    has_users = any(one["principal"] != ANONYMOUS for its in by_ip.values() for one in its)
    with_users = with_users and has_users
    rows = []
    for each in answer["addresses"]:
        its = by_ip[each["ip"]]
        rows.append(
            (
                TextPiece(each["ip"]),
                _of(each["connections"], each["limit"]),
                _rate(each["rate"], each["rate_limit"]),
                TextPiece(ago(max(one["age_ms"] for one in its)) if its else "-"),
                *([TextPiece(_users(its) or "-")] if with_users else []),
                TextPiece(_states(its) or "-"),
            )
        )
    lines = view_table(
        (*_ADDRESS_HEADINGS, *(["USERS"] if with_users else []), "STATE"),
        rows,
        right="CONNECTIONS NEW/S OLDEST",
    )
    more = answer["addresses_total"] - sum(each["connections"] > 0 for each in answer["addresses"])
    if more > 0:
        lines.append((TextPiece(f"and {more} more addresses", Emphasis.FAINT),))
    return lines if rows else [(TextPiece("no connections", Emphasis.FAINT),)]


def _ip(client_address: str) -> str:
    return client_ip(client_address.rpartition(":")[0].strip("[]"))


def ago(ms: int) -> str:
    """Format a duration in its largest unit."""
    for seconds, unit in UNITS:
        if ms >= seconds * 1000:
            return f"{ms // (seconds * 1000)} {unit}"
    return "0 s"


# Rejected connections -----------------------------------------------------------------------


def _rejections(rejections: Sequence[Answer], columns: int | None) -> list[Line]:
    """List rejections, newest first; identical texts are counted."""
    if not rejections:
        return [(TextPiece("no rejected connections", Emphasis.FAINT),)]
    times = Counter((each["listener"], each["text"]) for each in rejections)
    newest: dict[tuple[str, str], Answer] = {}
    for each in rejections:
        newest.setdefault((each["listener"], each["text"]), each)
    lines: list[Line] = [(TextPiece("REJECTED", Emphasis.HEADING),)]
    for (listener, text), each in newest.items():
        when = f"{ago(each['ago_ms'])} ago"
        count = times[listener, text]
        often = "" if count == 1 else f", {count} times"
        said = f"- {when}{often}, {listener}: {text}"
        lines += [(TextPiece(part),) for part in _wrapped(said, columns)]
    return lines


def _unserved(clients: Sequence[Answer], columns: int | None) -> list[Line]:
    """List clients that requested an unsupported protocol, newest first, and a blank line."""
    if not clients:
        return []
    lines: list[Line] = [(TextPiece("UNSUPPORTED", Emphasis.HEADING),)]
    for each in clients:
        words = (each["client_id"], each["software_name"], each["software_version"])
        name = printable(" ".join(word for word in words if word))
        who = f"{each['client_host']} ({name})" if name else each["client_host"]
        often = "" if each["requests"] == 1 else f", {each['requests']} times"
        said = (
            f"- {ago(each['ago_ms'])} ago{often}, {who} requested {each['protocol']}: "
            f"{each['advice']}."
        )
        lines += [(TextPiece(part, Emphasis.WARNING),) for part in _wrapped(said, columns)]
    return [*lines, ()]


def _wrapped(text: str, columns: int | None) -> list[str]:
    if columns is None:
        return [text]
    # Names of settings are not broken at hyphens, so that they can be copied.
    return textwrap.wrap(
        text,
        max(columns, WRAPPED_MIN),
        subsequent_indent="  ",
        break_on_hyphens=False,
    )


PATH: Final = ("v1", "connections")
INTERVAL_S: Final = 1.0

EXAMPLES = examples(
    "minibroker connections",
    "minibroker connections --once",
    "minibroker connections --interval 0.2 --control http://127.0.0.1:8080",
    "minibroker connections --json | jq .rejections[0].text",
    after="""Without a terminal, the command prints once. SLOTS shows a processor's queue of new
connections; NEW/S is the rate of new connections. WAITING connections are accepted and wait for
a limit or a processor; HELD connections are delayed by the rate of their IP address. If the
broker also rejects the connection of this command, pass the address of its control API with
--control.""",
)


@click.command("connections", cls=Command, epilog=EXAMPLES)
@control_option
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the response of the control API once.")
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 3600),
    default=INTERVAL_S,
    metavar="SECONDS",
    help="Interval between updates.",
)
def connections(connect: Connect, once: bool, as_json: bool, interval: float) -> None:
    """Show connections live, and why connections were rejected."""
    with connect() as api:
        if as_json:
            emit(api.request("GET", target_of(PATH)).decode().rstrip("\n"))
        else:
            show_view(lambda size: render_view(api.get(*PATH), size), interval, once=once)

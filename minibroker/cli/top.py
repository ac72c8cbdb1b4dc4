"""``minibroker top``: clients, topics and groups by what they do now, and who is throttled.

Owns the command, the rates between two looks at the broker, their order, and what is omitted on
small terminals. It must never measure anything itself. Invariant: the lines fit the given size, and
omissions are marked; each interval costs the broker three requests of its control API. Kafka has no
counterpart; its MBeans have some of the figures.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote_plus

import click

from minibroker.broker.metrics import definitions as d
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, limit_text, measured_text
from minibroker.cli.commands import Command, examples
from minibroker.cli.control import Connect, ControlClient, control_option
from minibroker.cli.output import emit, json_line, printable
from minibroker.cli.screen import Emphasis, Line, TextPiece, ViewSize, cut, narrowed, show_view
from minibroker.cli.screen import view_table as table_of

INTERVAL_S: Final = 2.0
FIRST_INTERVAL_S: Final = 0.5
"""Time between the first two looks, so that the first view has rates."""

SECTIONS: Final = 4
SECTION_LINES_MIN: Final = 3

EXAMPLES = examples(
    "minibroker top",
    "minibroker top --interval 1 --control http://127.0.0.1:8080",
    "minibroker top --once",
    "minibroker top --json | jq '.groups[] | select(.lag > 1000)'",
    after="""Without a terminal, the command prints once. Clients are listed with their connections
and what these do now, throttled ones first; topics by bytes per second; groups by their lag, in
records. `minibroker quotas explain` says why a client is throttled.""",
)

THROTTLED: Final = frozenset({"held", "responding, throttled", "throttled"})
"""States of connections that are throttled."""

Values: TypeAlias = Mapping[str, Mapping[tuple[str, ...], float]]
"""By metric: values by labels, in the order of the metric's labels."""

SHOWN: Final = {
    metric.name: metric
    for metric in (
        *(d.REQUESTS, d.RECORD_BYTES_IN, d.RECORDS_IN, d.RECORD_BYTES_OUT),
        *(d.TOPIC_BYTES_IN, d.TOPIC_RECORDS_IN, d.TOPIC_BYTES_OUT, d.LOG_SIZE, d.GROUP_LAG),
        *(d.IDLE, d.LOG_DIR_FREE, d.LOG_DIR_TOTAL),
    )
}
UNITS: Final = {kind.row.control_name: kind.row.unit for kind in CLIENT_QUOTA_TYPES}


class Look(NamedTuple):
    """What the broker said at one time."""

    at_s: float
    values: Values
    connections: dict[str, Any]
    """The answer of ``GET /v1/connections``."""
    quotas: dict[str, Any]
    """The answer of ``GET /v1/quotas``."""


class BrokerRates(NamedTuple):
    """What the whole broker does per second."""

    requests: float
    errors: float
    bytes_in: float
    records_in: float
    bytes_out: float
    connections: int
    busy: dict[str, float]
    """Share of time, 0 to 1, that each process works."""
    disk_free: float | None
    disk_total: float | None


class ClientRow(NamedTuple):
    """Connections with one client-id and user."""

    client_id: str
    user: str
    software: str
    connections: int
    doing: str
    throttled: int
    """Connections that wait for the end of a throttle now."""


class TopicRow(NamedTuple):
    """One topic, per second, and its size."""

    topic: str
    bytes_in: float
    records_in: float
    bytes_out: float
    size: int


class GroupRow(NamedTuple):
    """One group and topic; lag is in records."""

    group: str
    topic: str
    lag: int


class ThrottleRow(NamedTuple):
    """One counter of a quota whose clients were throttled in the last minute."""

    type: str
    user: str
    client_id: str
    rate: float
    quota: float | None
    throttle_ms: float


class TopFigures(NamedTuple):
    """Everything that the view shows, in its order."""

    broker: BrokerRates
    throttles: tuple[ThrottleRow, ...]
    clients: tuple[ClientRow, ...]
    topics: tuple[TopicRow, ...]
    groups: tuple[GroupRow, ...]

    def to_json(self) -> dict[str, object]:
        """Return the figures with names of fields."""
        rows = {
            name: [row._asdict() for row in part]
            for name, part in self._asdict().items()
            if name != "broker"
        }
        return {"broker": self.broker._asdict(), **rows}


def read_values(text: str) -> Values:
    """Read the metrics that are shown from the text of a scrape."""
    from prometheus_client.parser import text_string_to_metric_families

    lines = [line for line in text.splitlines() if line.partition("{")[0].split(" ")[0] in SHOWN]
    values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in SHOWN}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            labels = tuple(sample.labels[label] for label in SHOWN[sample.name].labels)
            values[sample.name][labels] = sample.value
    return values


def compare(before: Look, now: Look) -> TopFigures:
    """Return the rates between two looks, and the present state."""
    elapsed_s = max(now.at_s - before.at_s, 0.001)

    def rate(metric: d.Metric, labels: tuple[str, ...] = ()) -> float:
        then = before.values[metric.name].get(labels, 0.0)
        return max(now.values[metric.name].get(labels, 0.0) - then, 0.0) / elapsed_s

    answered = now.values[d.REQUESTS.name]
    broker = BrokerRates(
        requests=sum(rate(d.REQUESTS, labels) for labels in answered),
        errors=sum(rate(d.REQUESTS, labels) for labels in answered if labels[1] == "error"),
        bytes_in=rate(d.RECORD_BYTES_IN),
        records_in=rate(d.RECORDS_IN),
        bytes_out=rate(d.RECORD_BYTES_OUT),
        connections=now.connections["total"],
        busy={process: 1 - idle for (process,), idle in now.values[d.IDLE.name].items()},
        disk_free=next(iter(now.values[d.LOG_DIR_FREE.name].values()), None),
        disk_total=next(iter(now.values[d.LOG_DIR_TOTAL.name].values()), None),
    )
    sizes: Counter[str] = Counter()
    for (topic, _), size in now.values[d.LOG_SIZE.name].items():
        sizes[topic] += int(size)
    topics = [
        TopicRow(
            topic,
            rate(d.TOPIC_BYTES_IN, (topic,)),
            rate(d.TOPIC_RECORDS_IN, (topic,)),
            rate(d.TOPIC_BYTES_OUT, (topic,)),
            size,
        )
        for topic, size in sizes.items()
    ]
    shown = [row for row in topics if row.size or row.bytes_in or row.bytes_out]
    return TopFigures(
        broker,
        tuple(_throttles(now.quotas)),
        tuple(_clients(now.connections)),
        tuple(sorted(shown, key=lambda row: (-row.bytes_in - row.bytes_out, -row.size, row.topic))),
        tuple(_groups(now.values[d.GROUP_LAG.name])),
    )


def _throttles(quotas: dict[str, Any]) -> Iterator[ThrottleRow]:
    for use in sorted(quotas["uses"], key=lambda use: -(use["throttle_ms"] or 0)):
        if use["throttle_ms"]:
            user = unquote_plus(use["user"])
            rate, quota, throttle_ms = use["rate"], use["quota"], use["throttle_ms"]
            yield ThrottleRow(use["type"], user, use["client_id"], rate, quota, throttle_ms)


def _clients(connections: dict[str, Any]) -> list[ClientRow]:
    by_client: defaultdict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for processor in connections["processors"]:
        for each in processor["connections"]:
            software = " ".join(filter(None, (each["software_name"], each["software_version"])))
            user = each["principal"].removeprefix("User:")
            by_client[each["client_id"] or "", user, software].append(each)
    rows = [
        ClientRow(
            *client,
            connections=len(its),
            doing=_doing(its),
            throttled=sum(each["state"] in THROTTLED for each in its),
        )
        for client, its in by_client.items()
    ]
    return sorted(rows, key=lambda row: (-row.throttled, -row.connections, row.client_id))


def _doing(connections: Iterable[dict[str, Any]]) -> str:
    counted = Counter(each["in_flight"] or each["state"] for each in connections)
    return ", ".join(f"{count} {what}" for what, count in counted.most_common(2))


def _groups(lags: Mapping[tuple[str, ...], float]) -> list[GroupRow]:
    by_topic: Counter[tuple[str, str]] = Counter()
    for (group, topic, _), lag in lags.items():
        by_topic[group, topic] += int(lag)
    rows = [GroupRow(group, topic, lag) for (group, topic), lag in by_topic.items()]
    return sorted(rows, key=lambda row: (-row.lag, row.group, row.topic))


# The view ------------------------------------------------------------------------------------


def render_top(figures: TopFigures, size: ViewSize) -> list[Line]:
    """Format the figures as lines that fit into ``size``."""
    head = list(_head(figures.broker))
    sections = [
        _section("no client is throttled", _THROTTLE_HEADINGS, map(_throttle, figures.throttles)),
        _section("no clients", _CLIENT_HEADINGS, map(_client, figures.clients)),
        _section("no topics with records", _TOPIC_HEADINGS, map(_topic, figures.topics)),
        _section("no groups with offsets", _GROUP_HEADINGS, map(_group, figures.groups)),
    ]
    if size.lines is not None:
        sections = _fit(sections, size.lines - len(head) - SECTIONS)
    lines = head
    for section in sections:
        lines = [*lines, (), *section]
    if size.lines is not None:
        lines = cut(lines, size.lines)
    return lines if size.columns is None else [narrowed(line, size.columns) for line in lines]


def _fit(sections: Sequence[list[Line]], lines: int) -> list[list[Line]]:
    """Cut the longest sections until all of them fit."""
    limits = [len(section) for section in sections]
    while sum(limits) > lines and max(limits) > SECTION_LINES_MIN:
        limits[limits.index(max(limits))] -= 1
    return [cut(section, limit) for section, limit in zip(sections, limits, strict=True)]


def _head(broker: BrokerRates) -> Iterator[Line]:
    errors = Emphasis.WARNING if broker.errors else Emphasis.PLAIN
    yield (
        TextPiece(f"{broker.connections} connections, {_number(broker.requests)} requests/s, "),
        TextPiece(f"{_number(broker.errors)} errors/s", errors),
    )
    yield (
        TextPiece(
            f"in {_bytes(broker.bytes_in)}/s, {_number(broker.records_in)} records/s; "
            f"out {_bytes(broker.bytes_out)}/s"
        ),
    )
    busy = ", ".join(f"{process} {share:.0%}" for process, share in broker.busy.items())
    disk = ""
    if broker.disk_free is not None and broker.disk_total is not None:
        disk = f"; disk {_bytes(broker.disk_free)} of {_bytes(broker.disk_total)} free"
    yield (TextPiece(f"busy: {busy}{disk}", Emphasis.FAINT),)


def _section(
    empty: str, headings: tuple[str, str], rows: Iterable[tuple[TextPiece, ...]]
) -> list[Line]:
    names, right = headings
    found = list(rows)
    if not found:
        return [(TextPiece(empty, Emphasis.FAINT),)]
    return table_of(names.split(), found, right=right)


_THROTTLE_HEADINGS: Final = ("THROTTLED USER CLIENT-ID RATE QUOTA TIME", "RATE QUOTA TIME")
_CLIENT_HEADINGS: Final = (
    "CLIENT-ID USER CONNECTIONS THROTTLED DOING SOFTWARE",
    "CONNECTIONS THROTTLED",
)
_TOPIC_HEADINGS: Final = ("TOPIC IN/S RECORDS/S OUT/S SIZE", "IN/S RECORDS/S OUT/S SIZE")
_GROUP_HEADINGS: Final = ("GROUP TOPIC LAG", "LAG")


def _throttle(row: ThrottleRow) -> tuple[TextPiece, ...]:
    unit = UNITS[row.type]
    return (
        TextPiece(row.type, Emphasis.WARNING),
        _name(row.user),
        _name(row.client_id),
        TextPiece(f"{measured_text(row.rate)} {unit}"),
        TextPiece("-" if row.quota is None else f"{limit_text(row.quota)} {unit}"),
        TextPiece(f"{row.throttle_ms:.0f} ms", Emphasis.WARNING),
    )


def _client(row: ClientRow) -> tuple[TextPiece, ...]:
    throttled = Emphasis.WARNING if row.throttled else Emphasis.PLAIN
    return (
        _name(row.client_id),
        _name(row.user),
        TextPiece(str(row.connections)),
        TextPiece(str(row.throttled), throttled),
        TextPiece(row.doing),
        _name(row.software),
    )


def _topic(row: TopicRow) -> tuple[TextPiece, ...]:
    return (
        _name(row.topic),
        TextPiece(_bytes(row.bytes_in)),
        TextPiece(_number(row.records_in)),
        TextPiece(_bytes(row.bytes_out)),
        TextPiece(_bytes(row.size)),
    )


def _group(row: GroupRow) -> tuple[TextPiece, ...]:
    return _name(row.group), _name(row.topic), TextPiece(f"{row.lag:,}")


def _name(text: str) -> TextPiece:
    return TextPiece(printable(text) or "-")


def _number(value: float) -> str:
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


# The command ---------------------------------------------------------------------------------


@click.command("top", cls=Command, epilog=EXAMPLES)
@control_option
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and exit.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=INTERVAL_S,
    metavar="SECONDS",
    help="Interval between updates, and of the rates.",
)
def top(connect: Connect, once: bool, as_json: bool, interval: float) -> None:
    """Show clients, topics and groups live, and who is throttled."""
    with connect() as api:
        before = look_at(api)
        time.sleep(min(interval, FIRST_INTERVAL_S))
        if as_json:
            emit(json_line(compare(before, look_at(api)).to_json()))
            return

        def view(size: ViewSize) -> list[Line]:
            nonlocal before
            now = look_at(api)
            figures, before = compare(before, now), now
            return render_top(figures, size)

        show_view(view, interval, once=once)


def look_at(api: ControlClient) -> Look:
    """Ask the broker once."""
    return Look(
        time.monotonic(),
        read_values(api.request("GET", "/metrics").decode()),
        api.get("v1", "connections"),
        api.get("v1", "quotas"),
    )

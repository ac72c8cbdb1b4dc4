"""``minibroker trace``: print requests, responses and other events as they happen.

Owns the command, the layout of a line, and which response belongs to which request. Invariant: it
shows only what happened after its start, and leaves the journal on or off as it was. Every entry is
shown once: a request together with its response, or without one when its connection is closed,
entries are lost, or at the end; memory is bounded by the open connections. A broker receives one
request of a connection at a time, a proxy many, and responses have their order. Kafka has a request
log with one line a request, which a broker's configuration enables.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import click

from minibroker.cli.commands import Command, examples
from minibroker.cli.control import Connect, ControlClient, control_option
from minibroker.cli.output import emit, json_line, note, printable
from minibroker.client.control import target_of
from minibroker_protocol.dissect import Direction, api_named, dissect, render

STAGES: Final = ("queue", "execution", "network", "send")

LOSS_REASONS: Final = {
    "process_ended": "the process ended before it handed them over",
    "process_memory": "the process recorded more than it may keep",
    "journal_memory": "the journal's memory is full",
}

PROXY: Final = "proxy"
"""The role that records a request before those before it are answered."""

IN_FLIGHT_MAX: Final = 1000
"""Requests of a connection of a proxy that wait for their responses."""

Entry = Mapping[str, Any]


class TraceLines:
    """Lines of entries that arrive in order."""

    def __init__(self, *, frames: bool = False) -> None:
        """``frames`` adds dissected frames, which entries must have in base64."""
        self._frames = frames
        self._waiting: defaultdict[str, deque[Entry]] = defaultdict(deque)
        """Requests without a response so far, by connection."""

    def take(self, entry: Entry) -> Iterator[str]:
        """Yield the lines of an entry; a request has none before its response."""
        kind, connection = entry["kind"], entry["connection"]
        if kind == "request":
            others_max = IN_FLIGHT_MAX - 1 if entry["role"] == PROXY else 0
            yield from self._end(connection, others_max)
            self._waiting[connection].append(entry)
        elif kind == "response":
            yield from self._answered(connection, entry)
        elif kind == "lost":
            for waiting in list(self._waiting):
                yield from self._end(waiting)
            details = entry["details"]
            reason = LOSS_REASONS.get(details["reason"], details["reason"])
            whose = f" of {entry['role']}" if entry["role"] else ""
            yield f"{_time(entry)}  {details['entries']} entries{whose} lost: {reason}"
        else:
            if kind == "connection_closed":
                yield from self._end(connection)
                self._waiting.pop(connection, None)
            yield f"{_time(entry)}  {_subject(entry)}  {_event(entry)}"

    def end(self) -> Iterator[str]:
        """Yield the lines of requests that have no response."""
        for connection in list(self._waiting):
            yield from self._end(connection)

    def _end(self, connection: str, kept_max: int = 0) -> Iterator[str]:
        """Show the first requests without a response, until no more than ``kept_max`` wait."""
        waiting = self._waiting[connection]
        while len(waiting) > kept_max:
            request = waiting.popleft()
            yield f"{_time(request)}  {_subject(request)}  {_request(request)}  no response"
            yield from self._dissected(request)

    def _answered(self, connection: str, response: Entry) -> Iterator[str]:
        waiting = self._waiting[connection]
        ids = [request["correlation_id"] for request in waiting]
        if response["correlation_id"] not in ids:
            yield from self._exchange(None, response)
            return
        later = len(ids) - ids.index(response["correlation_id"])
        yield from self._end(connection, later)
        yield from self._exchange(waiting.popleft(), response)

    def _exchange(self, request: Entry | None, response: Entry) -> Iterator[str]:
        line = f"{_time(response)}  {_subject(response)}  {_request(request or response)}"
        if request is None:
            line = f"{_time(response)}  {_subject(response)}  {_name(response)}"
        parts = [f"{response['frame_bytes']} B", _stages(response["stages"])]
        if response["throttle_time_ms"]:
            parts.append(f"throttle {response['throttle_time_ms']} ms")
        yield f"{line} -> {'  '.join(part for part in parts if part)}"
        if request is not None:
            yield from self._dissected(request)
        yield from self._dissected(response)

    def _dissected(self, entry: Entry) -> Iterator[str]:
        if not self._frames:
            return
        if entry["frame"] is None:
            yield f"  {entry['kind']}: its frame is not kept"
            return
        frame = base64.b64decode(entry["frame"])
        try:
            key = None if entry["api"] is None else int(api_named(entry["api"]))
        except ValueError:
            key = None
        direction = Direction.REQUEST if entry["kind"] == "request" else Direction.RESPONSE
        result = dissect(frame, direction=direction, api_key=key, version=entry["version"])
        yield from (f"  {line}" for line in render(result).rstrip().splitlines())


def _time(entry: Entry) -> str:
    at = datetime.fromtimestamp(entry["clock_ms"] / 1000, UTC)
    return at.strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03}"


def _subject(entry: Entry) -> str:
    if entry["connection"] is None:
        return str(entry["role"])
    client_id = entry["client_id"]
    return f"{entry['connection']} {'-' if client_id is None else printable(client_id)}"


def _name(entry: Entry) -> str:
    if entry["api"] is None:
        return "no header"
    return f"{entry['api']} v{entry['version']} #{entry['correlation_id']}"


def _request(entry: Entry) -> str:
    return f"{_name(entry)}  {entry['frame_bytes']} B"


def _stages(stages: Mapping[str, float]) -> str:
    if "total" not in stages:
        return "not sent"
    parts = ", ".join(f"{name} {stages[name]:.1f}" for name in STAGES if name in stages)
    return f"{stages['total']:.1f} ms" + (f" ({parts})" if parts else "")


def _event(entry: Entry) -> str:
    kind, details = entry["kind"], entry["details"]
    if kind == "connection_opened":
        return f"opened  {entry['address']}  {details['listener']}"
    if kind == "connection_closed":
        text = f": {printable(details['text'])}" if details["text"] else ""
        return f"closed  {details['reason']}{text}"
    if kind == "connection_rejected":
        limit = "" if details["limit"] is None else f"  {details['limit']}={details['value']:g}"
        return f"rejected  {entry['address']}  {details['listener']}  {details['reason']}{limit}"
    if kind == "fault":
        about = "" if entry["api"] is None else f"  {_name(entry)}"
        return f"fault  {details['action']} (rule {details['rule']}){about}"
    if kind == "clock":
        moved = f"{(details['to'] - details['from']) / 1000:+.3f} s"
        return f"clock  {moved}  rate {details['rate']:g}{'  frozen' * bool(details['frozen'])}"
    before, after = details["from"] or "none", details["to"] or "none"
    return f"{details['what']} {printable(details['name'])}  {before} -> {after}"


PATH: Final = ("v1", "journal")

EXAMPLES = examples(
    "minibroker trace",
    "minibroker trace --client-id shop --api Produce -v",
    "minibroker trace --kind state,fault",
    "minibroker trace --json | jq .stages.total",
    after="""One line a request: time, connection, client id, API, version, correlation id,
bytes of request and response, and the milliseconds until the response was sent: in queues,
executing, the network processor's work, sending. The trace switches the broker's journal on and
off again. Ctrl-C ends it.""",
)


@click.command("trace", cls=Command, epilog=EXAMPLES)
@control_option
@click.option("--client-id", metavar="TEXT", help="Only this client id; * matches any text.")
@click.option("--api", metavar="API", help="Only this API: its name or number.")
@click.option("--connection", metavar="NUMBER", help="Only this connection.")
@click.option("--topic", metavar="TEXT", help="Only requests that name this topic.")
@click.option("--group", metavar="TEXT", help="Only requests that name this group.")
@click.option("--namespace", metavar="NAME", help="Only requests with names of this namespace.")
@click.option("--kind", metavar="KINDS", help="Only these kinds of entries, e.g. request,response.")
@click.option("-v", "--verbose", is_flag=True, help="Show what every byte of the frames means.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per entry.")
def trace(connect: Connect, verbose: bool, as_json: bool, **conditions: str | None) -> None:
    """Print requests, responses and other events as they happen."""
    with connect() as api:
        was_on = api.get(*PATH, "state")["enabled"]
        query = {name: value for name, value in conditions.items() if value is not None}
        query["after"] = api.post(*PATH, enabled=True)["last"]
        query["frames"] = "true" if verbose else "false"
        entries = _entries(api, target_of((*PATH, "stream"), query))
        try:
            _print(entries, TraceLines(frames=verbose), as_json=as_json)
        finally:
            if not was_on:
                api.post(*PATH, enabled=False)


def _entries(api: ControlClient, target: str) -> Iterator[dict[str, Any]]:
    lines = api.lines(target)
    next(lines, b"")  # The stream starts with a blank line.
    note("tracing; press Ctrl-C to end")
    for line in lines:
        if line.strip():
            yield json.loads(line)


def _print(entries: Iterator[dict[str, Any]], lines: TraceLines, *, as_json: bool) -> None:
    try:
        for entry in entries:
            if as_json:
                emit(json_line(entry))
                continue
            for line in lines.take(entry):
                emit(line)
    except KeyboardInterrupt:
        for line in lines.end():
            emit(line)
        note("")  # Below the terminal's ^C.

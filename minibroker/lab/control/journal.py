"""The journal in the control API: switch it on, query, stream, dissect and assert its entries.

Owns what a client may ask of the journal and what it gets. It must never know how entries are
collected. Invariant: one set of conditions selects entries everywhere, as texts of a query or as
JSON, and what is wrong in a query is answered before the first entry: conditions that can match no
entry, such as an unknown API, are errors with the name of the field. Kafka has no equivalent.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from minibroker.lab.control.operation import Operations, Stream, whole_number
from minibroker.lab.errors import NotFound, json_bytes
from minibroker.lab.journal.entries import (
    EntryKind,
    JournalEntry,
    api_key,
    api_name,
    decoded,
    entry_in_namespace,
)
from minibroker.lab.journal.filters import (
    AssertionResult,
    EntryFilter,
    did_not_happen_before,
    happened,
    happened_in_order,
)
from minibroker.lab.namespaces import PrefixedNames, prefix_of
from minibroker.lab.schema import Doc, Fault, InvalidJson, Length, Range, did_you_mean
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

if TYPE_CHECKING:
    from minibroker.lab.control.journal_collector import JournalCollector

TEXT_MAX: Final = 1024
"""Characters of a text."""

ENTRIES_MAX: Final = 10_000
"""Entries in one answer."""

ENTRIES: Final = 1000
"""Entries in one answer by default."""

WAIT_MS_MAX: Final = 600_000
STEPS_MAX: Final = 100
"""Entries in one order that an assertion may name."""

BYTES_MIN: Final = 1024 * 1024
BYTES_MAX: Final = 4 * 1024**3
NUMBER_MAX: Final = 2**53
"""The largest whole number that every JSON library keeps."""

PING_S: Final = 5.0
"""A stream sends a blank line after so long without an entry, to notice a client that is away."""

ANSWER_FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of all frames in one answer; the rest is left for the next one."""

SHOWN_MAX: Final = 100
"""Entries in the answer to an assertion."""

STREAMED_MAX: Final = 1000
"""Entries that a stream sends before records are collected again."""

DIGITS_MAX: Final = 16
"""Digits of a sequence."""

_NAMESPACE: Final = (
    "Only entries that name something in this namespace. `topic`, `group` and the entries have the "
    "names that its clients know."
)

EntryKindName: TypeAlias = Literal[
    "connection_opened",
    "connection_closed",
    "connection_rejected",
    "request",
    "response",
    "fault",
    "clock",
    "state",
    "lost",
]


class EntryView(NamedTuple):
    """One entry of the journal."""

    sequence: Annotated[
        int,
        Doc(
            "Position in the order of all entries, lost ones too, from 1; of the kind `lost`, that "
            "of the last entry that it represents."
        ),
    ]
    clock_ms: Annotated[float, Doc("Milliseconds since 1970 of the broker's clock.")]
    kind: EntryKindName
    role: Annotated[str, Doc("The process of the broker, e.g. `processor-0`.")]
    connection: Annotated[str | None, Doc("Number of the connection, as in `/v1/connections`.")]
    client_id: str | None
    address: Annotated[str | None, Doc("Host and port of the client.")]
    api: Annotated[str | None, Doc("Kafka's name of the API, e.g. `Produce`.")]
    version: Annotated[int | None, Doc("Version of the request.")]
    correlation_id: int | None
    throttle_time_ms: Annotated[int | None, Doc("Throttle time of a response.")]
    stages: Annotated[
        Mapping[str, float],
        Doc(
            "Milliseconds of a request until its response was sent: `queue` in the queues of other "
            "processes, `execution` there, `network` the processor's work, `send` until the "
            "response was sent, and `total`, which includes waiting."
        ),
    ]
    frame_bytes: Annotated[int, Doc("Size of the frame without its size field.")]
    frame: Annotated[
        str | None,
        Doc(
            "The frame in base64, if the query has `frames=true`, the frame has at most 64 KiB and "
            "cannot contain secrets."
        ),
    ]
    details: Annotated[
        Mapping[str, object],
        Doc(
            "`reason` and `text` of a closed connection; `rule` and `action` of a fault; `from` "
            "and `to` of the clock in ms; `what`, `name`, `from` and `to` of a state; of a loss, "
            "`entries` that happened between `since_ms` and its time and that the journal does not "
            "have, and as `reason` `process_ended`, `process_memory` or `journal_memory`."
        ),
    ]
    body: Annotated[
        Mapping[str, object] | None,
        Doc("Fields of the request or response, if the query has `decode=true`."),
    ]


class EntryQuery(NamedTuple):
    """Which entries are wanted, as texts of a query; all conditions must hold. Entries of the kind
    `lost` are among the answers of every query that one of the lost entries could have matched.
    """

    kind: Annotated[str, Doc("Kinds, separated by commas.")] = ""
    api: Annotated[str, Doc("API by name or key.")] = ""
    client_id: Annotated[str, Doc("Client id; `*` matches any text.")] = ""
    connection: Annotated[str, Doc("Number of the connection.")] = ""
    role: Annotated[str, Doc("A process of the broker.")] = ""
    topic: Annotated[str, Doc("Topic named in the frame, or whose state changed.")] = ""
    group: Annotated[str, Doc("Group named in the frame, or whose state changed.")] = ""
    namespace: Annotated[str, Doc(_NAMESPACE)] = ""
    error: Annotated[str, Doc("Kafka's error in a response, by name or code.")] = ""
    after: Annotated[str, Doc("Only entries with a greater sequence.")] = "0"
    limit: Annotated[str, Doc(f"Number of entries at most; by default {ENTRIES}.")] = str(ENTRIES)
    wait_ms: Annotated[str, Doc("Real milliseconds to wait until an entry matches.")] = "0"
    frames: Annotated[str, Doc("`true`: with frames in base64.")] = "false"
    decode: Annotated[str, Doc("`true`: with decoded bodies.")] = "false"


class JournalPage(NamedTuple):
    """Entries of the journal, oldest first."""

    entries: tuple[EntryView, ...]
    last: Annotated[int, Doc("Sequence of the newest entry, also if it does not match.")]
    dropped: Annotated[int, Doc("Number of lost entries since the journal was cleared.")]
    pending: Annotated[
        int, Doc("Number of entries of processes that do not respond, which may follow later.")
    ]
    has_more: Annotated[bool, Doc("Whether further entries match now.")]


class JournalChange(NamedTuple):
    """A change of the journal."""

    enabled: Annotated[bool | None, Doc("Record from now on, or stop.")] = None
    bytes_max: Annotated[
        int | None, Range(BYTES_MIN, BYTES_MAX), Doc("Memory for entries in bytes.")
    ] = None


class JournalView(NamedTuple):
    """The journal."""

    enabled: Annotated[bool, Doc("Whether the broker records.")]
    entries: Annotated[int, Doc("Number of entries.")]
    last: Annotated[int, Doc("Sequence of the newest entry; 0 if there was none.")]
    dropped: Annotated[int, Doc("Number of lost entries since the journal was cleared.")]
    pending: Annotated[
        int, Doc("Number of entries of processes that do not respond, which may follow later.")
    ]
    bytes: Annotated[int, Doc("Memory of the entries in bytes.")]
    bytes_max: Annotated[int, Doc("The memory above which the oldest entries are dropped.")]


class EntryConditions(NamedTuple):
    """Which entries are meant; all conditions must hold."""

    kind: EntryKindName | None = None
    api: Annotated[str | None, Length(1, 64), Doc("API by name or key.")] = None
    client_id: Annotated[
        str | None, Length(0, TEXT_MAX), Doc("Client id; `*` matches any text.")
    ] = None
    connection: Annotated[str | None, Length(1, 32), Doc("Number of the connection.")] = None
    role: Annotated[str | None, Length(1, 64), Doc("A process of the broker.")] = None
    topic: Annotated[
        str | None, Length(1, TEXT_MAX), Doc("Topic named in the frame, or whose state changed.")
    ] = None
    group: Annotated[
        str | None, Length(0, TEXT_MAX), Doc("Group named in the frame, or whose state changed.")
    ] = None
    namespace: Annotated[str | None, Length(1, 32), Doc(_NAMESPACE)] = None
    error: Annotated[
        str | None, Length(1, 64), Doc("Kafka's error in a response, by name or code.")
    ] = None
    details: Annotated[
        Mapping[str, object] | None,
        Length(0, 100),
        Doc('Values of the details, e.g. `{"to": "Stable"}`.'),
    ] = None


class JournalAssertion(NamedTuple):
    """An assertion over the journal: one of `happened`, `in_order` and `absent`."""

    happened: Annotated[
        EntryConditions | None, Doc("At least `times` entries match these conditions.")
    ] = None
    in_order: Annotated[
        tuple[EntryConditions, ...] | None,
        Length(1, STEPS_MAX),
        Doc("An entry matches each of these conditions, each after the one before."),
    ] = None
    absent: Annotated[
        EntryConditions | None, Doc("No entry matches, or none before `before_ms`.")
    ] = None
    times: Annotated[int, Range(1, NUMBER_MAX), Doc("For `happened`.")] = 1
    before_ms: Annotated[
        float | None,
        Range(0, NUMBER_MAX),
        Doc("For `absent`: milliseconds since 1970 of the broker's clock."),
    ] = None
    after: Annotated[int, Range(0, NUMBER_MAX), Doc("Only entries with a greater sequence.")] = 0
    wait_ms: Annotated[
        int,
        Range(0, WAIT_MS_MAX),
        Doc("Real milliseconds to wait until `happened` or `in_order` holds."),
    ] = 0


class AssertionView(NamedTuple):
    """The result of an assertion."""

    holds: bool
    text: Annotated[str, Doc("Why.")]
    entries: Annotated[tuple[EntryView, ...], Doc("Entries that show it, the oldest 100.")]
    last: Annotated[int, Doc("Sequence of the newest entry that was considered.")]


class FrameView(NamedTuple):
    """A dissected frame."""

    text: Annotated[str, Doc("What each byte means, line by line.")]


SendLine: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Sends bytes of a response that has no end."""


class JournalContext(Protocol):
    """A broker or a proxy."""

    @property
    def journal(self) -> JournalCollector:
        """Its journal."""


# Operations -----------------------------------------------------------------------------------


JOURNAL_OPERATIONS: Final = Operations()
_OFF: Final = {409: "The journal is off."}


@JOURNAL_OPERATIONS.add("GET", "/v1/journal/state")
async def get_journal(context: JournalContext) -> JournalView:
    """Return whether the journal is on, and its size."""
    collector = context.journal
    await collector.collect()
    journal = collector.journal
    return JournalView(
        collector.is_on,
        len(journal),
        journal.last,
        journal.dropped,
        sum(collector.pending.values()),
        journal.bytes,
        journal.bytes_max,
    )


@JOURNAL_OPERATIONS.add("POST", "/v1/journal", example={"enabled": True})
async def change_journal(context: JournalContext, change: JournalChange) -> JournalView:
    """Switch the journal on or off; respond when every process records, or none."""
    if change == JournalChange():
        raise InvalidJson([Fault("(body)", "must set at least one of enabled and bytes_max")])
    collector = context.journal
    if change.bytes_max is not None:
        collector.journal.bytes_max = change.bytes_max
        collector.journal.shrink(change.bytes_max)
    if change.enabled is not None:
        await collector.switch(is_on=change.enabled)
    return await get_journal(context)


@JOURNAL_OPERATIONS.add("DELETE", "/v1/journal")
async def clear_journal(context: JournalContext) -> None:
    """Drop all entries of the journal."""
    await context.journal.clear()


@JOURNAL_OPERATIONS.add("GET", "/v1/journal", errors=_OFF)
async def find_entries(context: JournalContext, query: EntryQuery) -> JournalPage:
    """Return entries of the journal: `?kind=…&api=…&client_id=…&after=…&wait_ms=…`."""
    request, collector = read_query(query), context.journal
    collector.check_recorded()
    journal = collector.journal
    wanted = replace(request.wanted, topic_ids=collector.topic_ids)
    entries: list[JournalEntry] = []

    def search() -> bool:
        nonlocal wanted
        entries.extend(journal.find(wanted, request.limit + 1))
        wanted = _after(wanted, journal.last)
        return bool(entries) or not request.limit

    await collector.wait(search, request.wait_ms)
    shown = _within(entries[: request.limit], frames=request.frames or request.decode)
    return JournalPage(
        views(shown, wanted.names, frames=request.frames, decode=request.decode),
        journal.last,
        journal.dropped,
        sum(collector.pending.values()),
        len(shown) < len(entries),
    )


@JOURNAL_OPERATIONS.add("GET", "/v1/journal/stream", media_type="application/jsonl", errors=_OFF)
async def stream_entries(context: JournalContext, query: EntryQuery) -> Stream:
    """Stream entries of the journal as lines of JSON, without end; blank lines mean nothing."""
    read_query(query)
    context.journal.check_recorded()
    return Stream(partial(send_entries, context.journal, query), "application/jsonl")


async def send_entries(collector: JournalCollector, query: EntryQuery, send: SendLine) -> None:
    """Send matching entries as lines of JSON until cancelled."""
    request, clock = read_query(query), collector.clock
    collector.check_recorded()
    wanted = replace(request.wanted, topic_ids=collector.topic_ids)
    await send(b"\n")
    silent_since = clock.real_s()
    while True:
        await collector.collect()
        entries = collector.journal.find(wanted, STREAMED_MAX)
        for entry in entries:
            view = view_of(entry, wanted.names, frames=request.frames, decode=request.decode)
            await send(json_bytes(view))
        is_full = len(entries) == STREAMED_MAX
        wanted = _after(wanted, entries[-1].sequence if is_full else collector.journal.last)
        if entries:
            silent_since = clock.real_s()
        elif clock.real_s() - silent_since >= PING_S:
            await send(b"\n")
            silent_since = clock.real_s()
        if not is_full:
            await collector.pause()


@JOURNAL_OPERATIONS.add(
    "GET",
    "/v1/journal/frames/{sequence}",
    errors={404: "There is no such entry, or its frame is not kept.", **_OFF},
)
async def dissect_frame(context: JournalContext, sequence: str) -> FrameView:
    """Return what every byte of the frame of a request or response means."""
    is_number = sequence.isascii() and sequence.isdecimal() and len(sequence) < DIGITS_MAX
    number, collector = int(sequence) if is_number else 0, context.journal
    collector.check_recorded()
    await collector.collect()
    entries = collector.journal.find(EntryFilter(after=number - 1), 1)
    if entries and entries[0].sequence == number:
        text = dissected(entries[0])
        if text is not None:
            return FrameView(text)
    raise NotFound("NO_SUCH_FRAME", f"no frame of an entry {number} is kept")


@JOURNAL_OPERATIONS.add(
    "POST",
    "/v1/journal/assert",
    errors=_OFF,
    example={"happened": {"kind": "request", "api": "Produce"}, "wait_ms": 5000},
)
async def assert_entries(context: JournalContext, assertion: JournalAssertion) -> AssertionView:
    """Check what has happened, in which order, or what has not happened."""
    given = [assertion.happened, assertion.in_order, assertion.absent]
    if sum(each is not None for each in given) != 1:
        fault = Fault("(body)", "must have exactly one of happened, in_order and absent")
        raise InvalidJson([fault])
    collector = context.journal
    steps = [
        replace(read_conditions(path, conditions, assertion.after), topic_ids=collector.topic_ids)
        for path, conditions in _conditions(assertion)
    ]
    collector.check_recorded()
    result = AssertionResult(False, "", ())

    def decide() -> bool:
        nonlocal result
        if assertion.happened is not None:
            result = happened(collector.journal, steps[0], assertion.times)
        elif assertion.in_order is not None:
            result = happened_in_order(collector.journal, steps)
        else:
            result = did_not_happen_before(
                collector.journal, steps[0], assertion.before_ms, pending=collector.pending
            )
            return True
        return result.holds

    await collector.wait(decide, assertion.wait_ms)
    return AssertionView(
        result.holds,
        result.text,
        views(result.entries[:SHOWN_MAX], steps[0].names),
        collector.journal.last,
    )


def _after(wanted: EntryFilter, sequence: int) -> EntryFilter:
    return replace(wanted, after=max(wanted.after, sequence))


def _within(entries: list[JournalEntry], *, frames: bool) -> list[JournalEntry]:
    """The first entries, as many as fit into an answer with their frames."""
    if not frames:
        return entries
    total = 0
    for count, entry in enumerate(entries):
        total += len(entry.frame or b"")
        if total > ANSWER_FRAME_BYTES_MAX and count:
            return entries[:count]
    return entries


def _conditions(assertion: JournalAssertion) -> Iterator[tuple[str, EntryConditions]]:
    """The conditions of an assertion, with the names of their fields."""
    if assertion.happened is not None:
        yield "happened", assertion.happened
    for index, step in enumerate(assertion.in_order or ()):
        yield f"in_order.{index}", step
    if assertion.absent is not None:
        yield "absent", assertion.absent


# Queries and views ----------------------------------------------------------------------------

_CODE_DIGITS_MAX: Final = 6
_CONDITIONS: Final = ("api", "client_id", "connection", "role", "topic", "group", "error")
"""Conditions that are texts in a query and in JSON."""


class EntryRequest(NamedTuple):
    """A query that was checked."""

    wanted: EntryFilter
    limit: int
    wait_ms: int
    frames: bool
    decode: bool


def read_query(query: EntryQuery) -> EntryRequest:
    """Check a query. Raises ``InvalidJson``."""
    faults: list[Fault] = []
    kinds = [each.strip() for each in query.kind.split(",") if each.strip()]
    faults += (
        _unknown("kind", each, [kind.value for kind in EntryKind])
        for each in kinds
        if each not in _KINDS
    )
    faults += _faults("", query.api, query.error)
    texts: dict[str, Any] = {name: getattr(query, name) or None for name in _CONDITIONS}
    request = EntryRequest(
        EntryFilter(
            kinds=frozenset(EntryKind(each) for each in kinds if each in _KINDS),
            names=_names(query.namespace),
            after=whole_number("after", query.after, NUMBER_MAX, faults),
            **texts,
        ),
        limit=whole_number("limit", query.limit, ENTRIES_MAX, faults),
        wait_ms=whole_number("wait_ms", query.wait_ms, WAIT_MS_MAX, faults),
        frames=_flag("frames", query.frames, faults),
        decode=_flag("decode", query.decode, faults),
    )
    if faults:
        raise InvalidJson(faults)
    return request


def read_conditions(path: str, conditions: EntryConditions, after: int) -> EntryFilter:
    """Return the filter of conditions in a field. Raises ``InvalidJson``."""
    faults = _faults(f"{path}.", conditions.api or "", conditions.error or "")
    if faults:
        raise InvalidJson(faults)
    kind = conditions.kind
    return EntryFilter(
        kinds=frozenset() if kind is None else frozenset({EntryKind(kind)}),
        names=_names(conditions.namespace),
        details=conditions.details or {},
        after=after,
        **{name: getattr(conditions, name) for name in _CONDITIONS},
    )


def _names(namespace: str | None) -> PrefixedNames | None:
    return PrefixedNames(prefix_of(namespace)) if namespace else None


def views(
    entries: Iterable[JournalEntry],
    names: PrefixedNames | None = None,
    *,
    frames: bool = False,
    decode: bool = False,
) -> tuple[EntryView, ...]:
    """Return entries as the control API shows them."""
    return tuple(view_of(entry, names, frames=frames, decode=decode) for entry in entries)


def view_of(
    entry: JournalEntry,
    names: PrefixedNames | None = None,
    *,
    frames: bool = False,
    decode: bool = False,
) -> EntryView:
    """Return an entry as the control API shows it, with the names of a namespace."""
    if names is not None:
        entry = entry_in_namespace(entry, names)
    return EntryView(
        sequence=entry.sequence,
        clock_ms=entry.clock_ms,
        kind=entry.kind.value,
        role=entry.role,
        connection=entry.connection,
        client_id=entry.client_id,
        address=entry.address,
        api=entry.api,
        version=entry.version,
        correlation_id=entry.correlation_id,
        throttle_time_ms=entry.throttle_time_ms,
        stages=entry.stages,
        frame_bytes=entry.frame_bytes,
        frame=_base64(entry.frame) if frames and entry.frame is not None else None,
        details=entry.details,
        body=_plain(decoded(entry)) if decode else None,
    )


def dissected(entry: JournalEntry) -> str | None:
    """Return what each byte of an entry's frame means; None if the frame is not kept."""
    # Imported with the first frame: most brokers dissect none.
    from minibroker_protocol.dissect import Direction, dissect, render

    if entry.frame is None:
        return None
    is_request = entry.kind is EntryKind.REQUEST
    direction = Direction.REQUEST if is_request else Direction.RESPONSE
    key = api_key(entry.api or "")
    return render(
        dissect(entry.frame, direction=direction, api_key=key, version=entry.version)
    ).rstrip()


_KINDS: Final = frozenset(EntryKind)


def _faults(path: str, api: str, error: str) -> list[Fault]:
    faults = []
    if api and api_key(api) is None:
        faults.append(_unknown(f"{path}api", api, [api_name(key) for key in ApiKey]))
    is_code = error.removeprefix("-").isdecimal() and len(error) <= _CODE_DIGITS_MAX
    if error and not is_code and error.upper() not in ErrorCode.__members__:
        faults.append(_unknown(f"{path}error", error.upper(), list(ErrorCode.__members__)))
    return faults


def _unknown(path: str, name: str, known: list[str]) -> Fault:
    return Fault(path, f"{name[:60]!r} is not known{did_you_mean(name, known)}")


def _flag(path: str, text: str, faults: list[Fault]) -> bool:
    if text not in {"true", "false"}:
        faults.append(Fault(path, "must be true or false"))
    return text == "true"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _plain(value: Any) -> Any:
    """Decoded fields as JSON: bytes become base64; JSON has no infinite numbers."""
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value

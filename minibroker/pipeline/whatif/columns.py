"""The columns of a replay: requests and their amounts, counters, statistics, answers.

Owns the memory layout for compiled code, the fields that are read and their meaning for a replay;
it must never know a quota, or where a table is. Invariant: an event gives the same row whatever
file, batch or order it comes in, and senders are numbered in the order of their first request.
Requests are in the order in which their shared counters saw them; amounts are integers, or floats
that represent integers exactly, unless events were sampled. ``network.quota_stage`` takes the same
amounts from live requests.
"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from minibroker.broker.quotas.manager import NS_PER_PERCENT_SECOND
from minibroker.broker.quotas.rate import ORDINALS_PER_MS
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, QuotaType
from minibroker.lab.activity.events import ActivityKind
from minibroker.pipeline.grouping import coded, joined, numbered
from minibroker.pipeline.quota_amounts import (
    FETCH_KEY,
    LENGTH_BYTES,
    PRODUCE_KEY,
    is_held_back,
)

# Memory layout -----------------------------------------------------------------------------------

KINDS: Final = tuple(kind for kind in CLIENT_QUOTA_TYPES if kind.row.check_field)
"""The quota types whose checks are in activity events, by their index here."""

PRODUCE, FETCH, REQUEST, MUTATION = range(4)
NONE: Final = -1
"""No counter, or no quota type: nothing throttles this."""

NEVER: Final = 2**62
"""A time that is never reached."""

PRODUCES, FETCHES, MUTATES, STRICT, EXEMPT, REPEATED, UNTHROTTLED = 1, 2, 4, 8, 16, 32, 64
"""Bits of a request. A ``REPEATED`` one was rejected, or fetched nothing, when it was recorded, so
its client sent it again. An ``UNTHROTTLED`` one counts for its mutations, and these may be
rejected, but the request is not throttled: Metadata requests that create topics.
"""

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]


class Sender(NamedTuple):
    """A sender of requests, with unmodified names. Each start of a broker is a new ``life``,
    with empty counters.
    """

    broker: int
    life: int
    user: str
    client_id: str


class Requests(NamedTuple):
    """One row per request. Amounts are divided by the sampling rate of connections."""

    ms: Longs
    """The time of its first check, on the broker's clock."""
    order: Longs
    """The ordinal of that check, which defines the order; ties are broken by ``sequence``."""
    sequence: Longs
    group: Ints
    """The number of its sender."""
    flags: Bytes
    amount: Floats
    """Bytes that count for a byte quota, or mutations."""
    checked: Floats
    """Worker time before the check, in percent of a second."""
    late: Floats
    """Worker time after the check."""
    late_ms: Longs
    """The time when ``late`` was recorded, or ``NEVER``."""
    late_order: Longs
    time_order: Longs
    """The ordinal of the time check; equals ``order`` unless other senders share the time counter.
    """
    back_order: Longs
    """The ordinal at which bytes that were not fetched in the end were given back."""
    wall_ms: Longs
    """The wall clock at ``ms``."""
    lag_ms: Ints
    """How long before ``ms`` its mutations were recorded."""
    connection: Longs
    throttled_ms: Ints
    """The recorded throttle time."""


class Sharing(NamedTuple):
    """By group and quota type: the counter, or ``NONE``, and its bound."""

    counter: Ints
    bound: Floats
    counted_from_ms: Longs
    """By group: decisions before this time fill counters only, and are in no statistics."""


# Columns of a tally, by group and quota type; times are of the wall clock. The last three are the
# current minute.
REQUESTS, THROTTLED, TOTAL_MS, LONGEST_MS, FIRST_MS, LAST_MS = range(6)
MINUTE, MINUTE_COUNT, MINUTE_MS = range(6, 9)
Tally = Longs

# Rows of minutes: group, type, minute, number of throttles, throttle time. The first row holds the
# number of rows; rows beyond the capacity are omitted.
Minutes = Longs

# Columns of ends, by group: the end of the last request as recorded and as replayed, and the number
# of abandoned requests; only used in the closed loop.
RECORDED_END_MS, REPLAYED_END_MS, ABANDONED = range(3)
Ends = Longs


class Answers(NamedTuple):
    """The decisions by row; without capacity nothing is stored."""

    throttles: Longs
    """By row: the throttle time, and the quota type that imposed it, or ``NONE``."""
    type_throttles: Longs
    """By row and quota type: the throttle time of that type alone, or -1 if it was not checked."""
    rate: Floats
    """By row and quota type: the measured rate."""


class Pending(NamedTuple):
    """Worked time to be recorded later: an ordered linked list for each counter."""

    items: Longs
    """By item: its ordinal, the request's sequence, the next item (also in the free list), and the
    time.
    """
    values: Floats
    head: Longs
    """The first free item, followed by the first item of each counter."""


class Terms(NamedTuple):
    """The broker's settings for measuring quotas."""

    window_ms: int
    burst_s: float
    delays: bool
    """Whether responses are delayed (``quota.throttle.mode=delay``) instead of muting senders."""
    closed: bool
    """Whether a connection's next request waits for the previous one and its throttle."""
    fetch_cap_s: float
    """The most that one fetch returns, in seconds of the quota."""


def new_tally(groups: int) -> Tally:
    """Empty statistics for a number of groups."""
    return np.zeros((groups, len(KINDS), MINUTE_MS + 1), np.int64)


def new_minutes(rows: int) -> Minutes:
    """Empty rows of minutes."""
    found = np.empty((rows + 1, 5), np.int64)
    found[0, 0] = 0
    return found


def new_answers(rows: int) -> Answers:
    """Empty answers."""
    throttles = np.zeros((rows, 2), np.int64)
    throttles[:, 1] = NONE
    kinds = len(KINDS)
    return Answers(throttles, np.full((rows, kinds), -1, np.int64), np.zeros((rows, kinds)))


def new_pending() -> Pending:
    """Without capacity, for no counter."""
    return Pending(np.empty((0, 4), np.int64), np.empty(0), np.full(1, NONE, np.int64))


def more_pending(pending: Pending, rows: int, counters: int) -> Pending:
    """Add capacity for ``rows`` more items, and for ``counters`` counters in total."""
    items, values, head = pending
    used = len(items)
    fresh = np.empty((rows, 4), np.int64)
    fresh[:, 2] = np.arange(used + 1, used + rows + 1)
    fresh[-1:, 2] = head[0]
    heads = np.full(counters + 1, NONE, np.int64)
    heads[: len(head)] = head
    heads[0] = used if rows else head[0]
    return Pending(np.concatenate((items, fresh)), np.concatenate((values, np.empty(rows))), heads)


# Conversion of events ----------------------------------------------------------------------------

COMMON: Final = ("kind", "broker", "started_us", "sequence", "time_us", "clock_ms", "sample")
OF_REQUESTS: Final = ("user", "client_id", "api_key", "exempt", "ordinal")
OF_KINDS: Final[dict[QuotaType, tuple[str, ...]]] = {
    QuotaType.PRODUCE: ("request_bytes",),
    QuotaType.FETCH: ("response_bytes", "back_ordinal"),
    QuotaType.REQUEST: (
        "checked_ns",
        "late_ns",
        "late_clock_ms",
        "late_ordinal",
        "time_ordinal",
    ),
    QuotaType.CONTROLLER_MUTATION: ("mutations", "mutations_refused", "strict"),
}
"""Fields that matter only if there are quotas of the type."""
OF_CONNECTIONS: Final = ("connection", "ip", "happened", "reason", "delay_ms")
OF_FACTS: Final = ("throttle_ms",)
"""The decision that was recorded."""
ALL: Final = tuple(
    dict.fromkeys(
        (*COMMON, *OF_REQUESTS, *itertools.chain(*OF_KINDS.values()), *OF_CONNECTIONS, *OF_FACTS)
    )
)
CHECKS: Final = tuple(kind.row.check_field for kind in KINDS)
"""In the order of the quota types."""

METADATA_KEY: Final = 3

_FAR_MS: Final = NEVER // ORDINALS_PER_MS
"""The latest time whose ordinal fits into 64 bits."""


def longs(table: pa.Table, name: str, missing: int = 0) -> Longs:
    """A column of integers, filled with ``missing`` if it was not read."""
    if name not in table.column_names:
        return np.full(len(table), missing, np.int64)
    found: Longs = _filled(table.column(name), missing).to_numpy().astype(np.int64, copy=False)
    return found


def _filled(column: pa.ChunkedArray, missing: object) -> pa.ChunkedArray:
    return pc.fill_null(column, missing) if column.null_count else column


def given(table: pa.Table, name: str) -> Flags:
    """Flag the rows with a value."""
    if name not in table.column_names:
        return np.zeros(len(table), np.bool_)
    column = table.column(name)
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    found: Flags = pc.is_valid(column).to_numpy()
    return found


def _true(table: pa.Table, name: str) -> Flags:
    found: Flags = _filled(table.column(name), False).to_numpy()
    return found


def codes(table: pa.Table, name: str) -> tuple[Longs, list[str]]:
    """A string column as numbers, and the strings by number; null becomes the empty string."""
    numbers, texts = coded(table.column(name))
    return numbers, [*(text or "" for text in texts.to_pylist()), ""]


def of_kind(table: pa.Table, kind: ActivityKind) -> pa.Table:
    """The events of one kind."""
    numbers, texts = codes(table, "kind")
    wanted = [at for at, text in enumerate(texts) if text == kind]
    mask = np.isin(numbers, wanted)
    rows = np.flatnonzero(mask)
    if len(rows) == 0:
        return table.slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):  # Contiguous, as in a sorted file: no copy needed.
        return table.slice(first, len(rows))
    return table.filter(pa.array(mask))


def check_field(table: pa.Table, check: str, field: str) -> pa.ChunkedArray:
    """A field of a recorded quota check."""
    return pc.struct_field(table.column(check), field)


class Lives:
    """Numbers the lives of brokers, from one start to the next."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}

    def of(self, brokers: Longs, started_us: Longs) -> Ints:
        """The number of each row's life."""
        heads, numbers = numbered(joined([brokers, started_us]))
        starts = zip(brokers[heads].tolist(), started_us[heads].tolist(), strict=True)
        found = [self._known.setdefault(start, len(self._known)) for start in starts]
        return np.array(found, np.int32)[numbers]

    def brokers(self) -> list[int]:
        """The broker of each life."""
        return [broker for broker, _ in self._known]


class Senders:
    """Numbers senders in the order of their first request."""

    def __init__(self) -> None:
        self.all: list[Sender] = []
        self.lives = Lives()
        self._numbers: dict[Sender, int] = {}

    def number(self, sender: Sender) -> int:
        """The number of a sender, new if it is unknown."""
        found = self._numbers.setdefault(sender, len(self.all))
        if found == len(self.all):
            self.all.append(sender)
        return found

    def groups(self, table: pa.Table) -> Ints:
        """The number of each row's sender."""
        users, user_names = codes(table, "user")
        clients, client_ids = codes(table, "client_id")
        lives = self.lives.of(longs(table, "broker"), longs(table, "started_us"))
        heads, of_rows = numbered(joined([lives, users, clients]))
        brokers = self.lives.brokers()
        found = [
            self.number(Sender(brokers[life], life, user_names[user], client_ids[client]))
            for life, user, client in zip(
                lives[heads].tolist(), users[heads].tolist(), clients[heads].tolist(), strict=True
            )
        ]
        return np.array(found, np.int32)[of_rows]


def requests_of(table: pa.Table, senders: Senders, *, delays: bool) -> Requests:
    """Convert a table of requests, keeping its order."""
    clock_ms = longs(table, "clock_ms")
    ms = _first_check_ms(table, clock_ms) if delays else clock_ms
    apart_ms = longs(table, "time_us") // 1000 - clock_ms
    keys = longs(table, "api_key", -1)
    lag_ms = np.zeros(len(clock_ms), np.int32)
    mutates = given(table, "mutations")
    if mutates.any():
        counted_ms = _filled(check_field(table, "mutation", "clock_ms"), NEVER).to_numpy()
        lag_ms = np.where(counted_ms == NEVER, 0, ms - counted_ms).astype(np.int32)
    late_ms = longs(table, "late_clock_ms", NEVER)
    order = _ordinals(table, "ordinal", ms * ORDINALS_PER_MS)
    late_order = np.where(late_ms == NEVER, NEVER, np.minimum(late_ms, _FAR_MS) * ORDINALS_PER_MS)
    share = _filled(table.column("sample"), 1.0).to_numpy()
    scale = share if len(share) and share.min() < 1 else None
    return Requests(
        ms,
        order,
        longs(table, "sequence"),
        senders.groups(table),
        _flags(table, keys, mutates, delays=delays),
        _scaled(_amounts(table, keys, mutates), scale),
        _scaled(longs(table, "checked_ns") / NS_PER_PERCENT_SECOND, scale),
        _scaled(longs(table, "late_ns") / NS_PER_PERCENT_SECOND, scale),
        late_ms,
        _ordinals(table, "late_ordinal", late_order),
        _ordinals(table, "time_ordinal", order),
        _ordinals(table, "back_ordinal", order),
        ms + apart_ms,
        lag_ms,
        longs(table, "connection"),
        longs(table, "throttle_ms").astype(np.int32),
    )


def _ordinals(table: pa.Table, name: str, otherwise: Longs) -> Longs:
    """A column of ordinals, with ``otherwise`` for missing values."""
    if name not in table.column_names or table.column(name).null_count == len(table):
        return otherwise
    found = longs(table, name, NONE)
    return found if table.column(name).null_count == 0 else np.where(found < 0, otherwise, found)


def _scaled(amounts: Floats, scale: Floats | None) -> Floats:
    return amounts if scale is None else amounts / scale


def _amounts(table: pa.Table, keys: Longs, mutates: Flags) -> Floats:
    found = np.where(keys == PRODUCE_KEY, longs(table, "request_bytes"), 0)
    found = np.where(keys == FETCH_KEY, longs(table, "response_bytes") + LENGTH_BYTES, found)
    if mutates.any():
        found = np.where(mutates, longs(table, "mutations"), found)
    return found.astype(np.float64)


def _flags(table: pa.Table, keys: Longs, mutates: Flags, *, delays: bool) -> Bytes:
    fetches, exempt = keys == FETCH_KEY, _true(table, "exempt")
    found = (keys == PRODUCE_KEY) * PRODUCES | fetches * FETCHES | exempt * EXEMPT
    if mutates.any():
        strict = _true(table, "strict") & mutates
        unthrottled = mutates & (keys == METADATA_KEY)
        repeated = strict & ~unthrottled & (longs(table, "mutations_refused") > 0)
        found = (
            found
            | mutates * MUTATES
            | strict * STRICT
            | repeated * REPEATED
            | unthrottled * UNTHROTTLED
        )
    if not delays:
        found = found | is_held_back(keys, exempt, longs(table, "throttle_ms")) * REPEATED
    bits: Bytes = found.astype(np.uint8)
    return bits


def _first_check_ms(table: pa.Table, clock_ms: Longs) -> Longs:
    """The time of the first quota check, for brokers that delay responses between checks."""
    found = clock_ms
    for check in CHECKS[:3]:
        at_ms: NDArray[np.int64] = _filled(check_field(table, check, "clock_ms"), NEVER).to_numpy()
        found = np.minimum(found, at_ms)
    return found

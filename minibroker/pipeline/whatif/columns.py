"""Converts recorded events to the columns of a replay: the amounts that count for each quota.

Owns the fields that are read and their meaning for a replay; it must never know a quota, or where a
table is. Invariant: an event gives the same row whatever file, batch or order it comes in, and
senders are numbered in the order of their first request. ``network.quota_stage`` takes the same
amounts from live requests.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from minibroker.broker.quotas.counter import ORDINALS_PER_MS
from minibroker.broker.quotas.manager import NS_PER_PERCENT_SECOND
from minibroker.broker.quotas.types import QuotaType
from minibroker.lab.activity.schema import ActivityKind
from minibroker.pipeline.grouping import coded, joined, numbered
from minibroker.pipeline.quota_amounts import (
    FETCH_KEY,
    LENGTH_BYTES,
    PRODUCE_KEY,
    is_held_back,
)
from minibroker.pipeline.whatif.counters import Floats
from minibroker.pipeline.whatif.events import (
    EXEMPT,
    FETCHES,
    KINDS,
    MUTATES,
    NEVER,
    NONE,
    PRODUCES,
    REPEATED,
    STRICT,
    UNTHROTTLED,
    Bytes,
    Flags,
    Ints,
    Longs,
    Requests,
)
from minibroker.pipeline.whatif.proposal import Sender

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

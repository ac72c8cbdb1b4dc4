"""Quotas, their levels and units, and how much an event counts for each, vectorized in Arrow.

Owns the rules by which quotas count, and the fields that they use; it must never know Spark, or
what is done with the amounts. Invariant: amounts are integers in ``UNITS`` and each event is judged
by itself, so neither the order nor the partitioning of events matters. The quotas' names are
Kafka's configs; its rules are spread over ``KafkaApis``, ``ClientQuotaManager``,
``ControllerMutationQuota`` and ``ConnectionQuotas``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from minibroker.broker.quotas.types import (
    BY_KEY,
    CLIENT_QUOTA_KEYS,
    CONNECTION_CREATION_RATE,
    QuotaType,
)
from minibroker.lab.activity.events import ActivityKind, ConnectionStep
from minibroker.pipeline.grouping import Flags, Floats, Ints, coded
from minibroker.pipeline.report import formats

# Quotas and levels -------------------------------------------------------------------------------

BROKER, USER, CLIENT, USER_AND_CLIENT, IP = "broker", "user", "client", "user+client", "ip"
LEVELS: Final[dict[str, tuple[str, ...]]] = {
    BROKER: (),
    USER: ("user",),
    CLIENT: ("client_id",),
    USER_AND_CLIENT: ("user", "client_id"),
    IP: ("ip",),
}
"""The levels at which usage is aggregated, and the names that identify an entity of each."""
NAMES: Final = ("user", "client_id", "ip")

PRODUCE: Final = QuotaType.PRODUCE.row.config_key
FETCH: Final = QuotaType.FETCH.row.config_key
REQUEST: Final = QuotaType.REQUEST.row.config_key
MUTATION: Final = QuotaType.CONTROLLER_MUTATION.row.config_key
QUOTAS: Final = tuple(BY_KEY)
CHECKS: Final = {
    key: kind.row.check_field for key, kind in CLIENT_QUOTA_KEYS.items() if kind.row.check_field
}
"""The event field that holds the broker's check of each client quota."""
UNITS: Final = {REQUEST: 10_000_000}
"""Nanoseconds in one percent-second; other quantities are counted in their own unit."""


def amount(quota: str, rate: float) -> str:
    """Format a rate of a quota: `1.2 MB/s`, `12 %`, `3 partitions/s`."""
    unit = BY_KEY[quota].row.unit
    return formats.amount(rate, unit) if unit == "B/s" else f"{formats.figure(rate)} {unit}"


# Amounts of events -------------------------------------------------------------------------------

_PLAIN: Final = (
    *("broker", "kind", "time_us", "sample", *NAMES, "api_key", "exempt", "request_bytes"),
    *("response_bytes", "throttle_ms", "network_ns", "io_ns", "total_ns", "checked_ns", "late_ns"),
    *("mutations", "mutations_refused", "happened", "delay_ms", "error_code", "dropped"),
)
LOOKED_AT: Final = ("user", "client_id", "rate", "bound", "throttle_ms")
"""The fields used of a quota check."""
FIELDS: Final = (*_PLAIN, *CHECKS.values())
"""The fields used of an event."""
PATHS: Final = (*_PLAIN, *(f"{check}.{name}" for check in CHECKS.values() for name in LOOKED_AT))
"""The same as columns of a Parquet file."""

PER_EVENT: Final = 1_000_000
"""Weight of one event in request counts, if it was not sampled."""
LENGTH_BYTES: Final = 4
"""Bytes that Kafka counts for a fetch in addition to the response: its length prefix."""
PRODUCE_KEY, FETCH_KEY = 0, 1


def is_held_back(api_keys: Any, exempt: Any, throttle_ms: Any) -> Any:
    """Whether the bytes of a response were not sent: a throttled fetch gets an empty response.

    Its client fetches them again. The arguments are numbers and flags, as NumPy's arrays or Spark's
    columns; ``response_bytes`` of such an event is the size that the response would have had.
    """
    return (api_keys == FETCH_KEY) & ~exempt & (throttle_ms > 0)


class Names(NamedTuple):
    """A column of names as numbers."""

    numbers: Ints
    """Of each row."""
    texts: pa.Array
    """By number. The last one is null."""

    @property
    def there(self) -> Flags:
        """Flags the rows that have a name."""
        found: Flags = self.numbers != len(self.texts) - 1
        return found


class Counted(NamedTuple):
    """What events count for a quota: one element for each event."""

    quota: str
    where: Flags
    """Flags the events that count; the other columns are meaningful for these only."""
    begins: Flags | None
    """Flags the events that are a request, or the first of a connection; None if all are."""
    amount: Ints
    """In the quota's unit, see ``UNITS``."""
    throttled_ms: Ints
    level: Ints | None
    """Index in ``LEVELS`` of the level at which the broker checked it, or -1; None if unknown."""
    measured: Floats | None
    """The rate that the broker measured, or nan."""
    bound: Floats | None
    """The quota in force, or nan."""


class Events:
    """A table of events with at least the columns ``FIELDS``."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.combine_chunks()

    def __len__(self) -> int:
        return len(self._table)

    @cached_property
    def brokers(self) -> Ints:
        return self.ints("broker")

    @cached_property
    def times_us(self) -> Ints:
        return self.ints("time_us")

    @cached_property
    def dropped(self) -> Ints:
        """Number of events that the broker dropped; zero except for events of that kind."""
        return self.ints("dropped")

    @cached_property
    def seen(self) -> Flags:
        """Flags all events but the reports of dropped ones."""
        return self._given("sample")

    @cached_property
    def latencies_us(self) -> Ints:
        """Total time of each request, or -1."""
        found = self.ints("total_ns", -1)
        latencies: Ints = np.where(found < 0, found, found // 1000)
        return latencies

    @cached_property
    def failed(self) -> Flags:
        codes = self.ints("error_code")
        refused = ~self._given("error_code") & self._is("happened", ConnectionStep.REFUSED)
        found: Flags = (codes != 0) | refused
        return found

    def names(self) -> dict[str, Names]:
        """The user, client-id and address of each event. Addresses count for connections only,
        which have neither user nor client-id. An empty client-id is null, because no client-id
        quota applies to it.
        """
        ips = self._names("ip")
        nobody = len(ips.texts) - 1
        return {
            "user": self._names("user"),
            "client_id": _without_empty(self._names("client_id")),
            "ip": Names(np.where(self._connections, ips.numbers, nobody), ips.texts),
        }

    def for_all(self, values: Ints | int) -> Ints:
        """Scale ``values`` by the sampling rate, to estimate the sum over all events."""
        if self._whole:
            return np.where(self.seen, values, 0)
        share = self._shares
        # Halves are rounded up, as in SQL.
        scaled = np.asarray(values) / np.where(self.seen, share, 1.0)
        low = np.floor(scaled)
        return np.where(self.seen, low + (scaled - low >= 0.5), 0).astype(np.int64)

    def counted(self) -> Iterator[Counted]:
        """The amounts for each quota."""
        keys = self.ints("api_key", -1)
        counts = ~self._flags("exempt", missing=True)
        yield self._checked(PRODUCE, keys == PRODUCE_KEY, self.ints("request_bytes"))
        sizes = np.where(self._given("response_bytes"), LENGTH_BYTES, 0)
        held_back = is_held_back(keys, ~counts, self.ints("throttle_ms"))
        sizes = np.where(held_back, 0, self.ints("response_bytes") + sizes)
        yield self._checked(FETCH, (keys == FETCH_KEY) & counts, sizes)
        worked = np.where(
            self._given("checked_ns"),
            self.ints("checked_ns") + self.ints("late_ns"),
            self.ints("network_ns") + self.ints("io_ns"),
        )
        # Reports of dropped events count too, or they would be invisible here.
        where = self._is("kind", ActivityKind.REQUEST) & counts
        where |= self._is("kind", ActivityKind.DROPPED)
        yield self._checked(REQUEST, where, worked)
        left = self.ints("mutations") - self.ints("mutations_refused")
        # A mutation check records the remaining tokens, not a rate.
        found = self._checked(MUTATION, self._given("mutations"), left)
        yield found._replace(measured=None)
        accepted = self._is("happened", ConnectionStep.ACCEPTED)
        throttled_ms = np.where(self._is("happened", ConnectionStep.HELD), self.ints("delay_ms"), 0)
        yield Counted(
            CONNECTION_CREATION_RATE, self._connections, accepted, accepted.astype(np.int64),
            throttled_ms, None, None, None,
        )  # fmt: skip

    def _checked(self, quota: str, where: Flags, amount: Ints) -> Counted:
        column = self._table.column(CHECKS[quota])
        field = {name: pc.struct_field(column, name) for name in LOOKED_AT}
        if column.null_count == len(self):
            no_throttles = np.zeros(len(self), np.int64)
            return Counted(quota, where, None, amount, no_throttles, None, None, None)
        user, client = (_not_empty(field[name]) for name in LOOKED_AT[:2])
        by = {USER_AND_CLIENT: user & client, USER: user & ~client, CLIENT: client & ~user}
        level = np.full(len(self), -1, np.int64)
        for name, rows in by.items():
            level[rows] = list(LEVELS).index(name)
        throttled_ms = _filled(field["throttle_ms"], 0).astype(np.int64)
        rate, bound = (_filled(field[name], np.nan) for name in ("rate", "bound"))
        return Counted(quota, where, None, amount, throttled_ms, level, rate, bound)

    @cached_property
    def _connections(self) -> Flags:
        return self._is("kind", ActivityKind.CONNECTION)

    @cached_property
    def _shares(self) -> Floats:
        found: Floats = _filled(self._table.column("sample"), 1.0)
        return found

    @cached_property
    def _whole(self) -> bool:
        """Whether no event was sampled."""
        return bool((self._shares == 1).all())

    def ints(self, name: str, missing: int = 0) -> Ints:
        """A column of integers."""
        found: Ints = _filled(self._table.column(name), missing).astype(np.int64, copy=False)
        return found

    def _flags(self, name: str, *, missing: bool) -> Flags:
        found: Flags = _filled(self._table.column(name), missing)
        return found

    def _given(self, name: str) -> Flags:
        found: Flags = pc.is_valid(self._table.column(name)).to_numpy()
        return found

    def _is(self, name: str, text: str) -> Flags:
        found: Flags = _filled(pc.equal(self._table.column(name), str(text)), False)
        return found

    def _names(self, name: str) -> Names:
        numbers, texts = coded(self._table.column(name))
        return Names(numbers, pa.concat_arrays([texts.cast(pa.string()), pa.nulls(1, pa.string())]))


def _without_empty(names: Names) -> Names:
    empty = pc.index(names.texts, "").as_py()
    if empty < 0:
        return names
    return names._replace(
        numbers=np.where(names.numbers == empty, len(names.texts) - 1, names.numbers)
    )


def _not_empty(column: pa.ChunkedArray) -> Flags:
    whole = column.combine_chunks()
    if not pa.types.is_dictionary(column.type):
        found: Flags = _filled(pc.not_equal(whole, ""), False)
        return found
    texts = _filled(pc.not_equal(whole.dictionary.cast(pa.string()), ""), False)
    flags: Flags = np.append(texts, False)[_filled(whole.indices, len(texts))]
    return flags


def _filled(column: Any, missing: Any) -> Any:
    if column.null_count:
        column = pc.fill_null(column, missing)
    whole = isinstance(column, pa.ChunkedArray)
    return column.to_numpy() if whole else column.to_numpy(zero_copy_only=False)

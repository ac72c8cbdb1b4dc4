"""What one request costs: times, bytes, work and errors, from its reception to its response.

Owns the only record of these figures; quotas, metrics and observers read it. It must never decide
about a request. Invariant: work is counted once; ``late_ns`` is what quotas had not recorded before
the response; counting takes some microseconds, whatever the client sends. Kafka's
``RequestChannel.Request``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from struct import Struct as Layout
from typing import TYPE_CHECKING, Any, Final

from minibroker.broker.quotas.types import QuotaType
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.records import HEADER_BYTES
from minibroker_protocol.schema import Array, Struct

if TYPE_CHECKING:
    from minibroker.broker.apis.base import Context
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.request_observer import Interception
    from minibroker.broker.quotas.controller_mutation import Mutated
    from minibroker.broker.quotas.manager import DeferredRecord, QuotaCheck, QuotaUser
    from minibroker_protocol.headers import RequestHeader
    from minibroker_protocol.messages.produce import ProduceRequest

SEARCHED_MAX: Final = 1000
"""Elements of a list that are searched for an error or a batch: bounds the cost of a request."""

_COUNT: Final = Layout(">i").unpack_from
_COUNT_POSITION: Final = HEADER_BYTES - 4
"""Position of the number of records in a batch."""

# Used by every request: attribute access of an enumeration takes ten times as long.
_REQUEST, _PRODUCE = QuotaType.REQUEST, QuotaType.PRODUCE


class QuotaChecks:
    """Results of the quota checks of one request, for observers."""

    # Defaults in the class: setting them for each request would take longer.
    produce: QuotaCheck | None = None
    fetch: QuotaCheck | None = None
    request: QuotaCheck | None = None
    throttle_ms = 0
    taken_back: int | None = None
    """Ordinal of the record that subtracts bytes that were not fetched."""

    def note(self, check: QuotaCheck) -> None:
        """Keep the result of a check."""
        # A dictionary by type would take twice the time, because the hash of a type is Python code.
        if check.kind is _REQUEST:
            self.request = check
        elif check.kind is _PRODUCE:
            self.produce = check
        else:
            self.fetch = check


class RequestCost:
    """One request of a client and its cost so far. Times in nanoseconds of ``perf_counter_ns``."""

    # Defaults in the class: setting them for each request would take longer.
    header: RequestHeader
    now: float
    """Time when the response was known, in seconds of the broker's clock."""
    is_direct = False
    """Whether the request was answered without the three steps of its API, and has no context."""
    ctx: Context
    request: Any
    """The decoded request."""
    response: Any
    """The response of the API, without throttle time; None if there is none."""
    owners_ns = 0
    """Time spent waiting for the processes that execute the request, including their work."""
    io_ns = 0
    """Work of those processes."""
    worked_ns = 0
    """Work that quotas record before the response, by network and I/O."""
    network_ns = 0
    """Work of this process on the request, known when the response is sent."""
    total_ns = 0
    response_bytes = 0
    sent_bytes = 0
    """Size of the response with length and header; 0 if none was sent."""
    records: int | None = None
    """Number of produced records, if the connection's quota checks are observed."""
    deferred: DeferredRecord | None = None
    """Set if quotas may record the request after its response."""
    is_recorded = False
    """Whether quotas record the request, or observers need what they would record."""
    exempt = False
    """See `quota_stage.is_exempt`."""
    quota_user: QuotaUser
    """The user and client id whose quotas the request counts for."""
    checks: QuotaChecks | None = None
    """Results of quota checks, if they are observed."""
    interception: Interception | None = None
    """Set if the interceptor has to do with the request."""
    error = 0
    """The first error code of the response."""
    mutated: Mutated | None = None
    """Controller mutations of the request."""
    later_time: tuple[int, int, int | None] | None = None
    """Work after the quota check in ns, the time in ms of its record, and its ordinal."""

    def __init__(
        self, client: ClientConnection, request_bytes: int, received_ns: int, worked_from_ns: int
    ) -> None:
        """``worked_from_ns`` is the connection's work when the request was received."""
        self.client = client
        self.request_bytes = request_bytes
        self.received_ns = received_ns
        self._worked_from_ns = worked_from_ns
        # Not in the class: a compiled class only has defaults of simple types.
        self.request = None
        self.response = None

    @property
    def queue_ns(self) -> int:
        """Time in the queues of the processes that execute the request."""
        return max(self.owners_ns - self.io_ns, 0)

    @property
    def late_ns(self) -> int:
        """Work that ``worked_ns`` does not contain: reading the request, sending the response."""
        reading_ns = self._worked_from_ns - self.client.accounted_ns
        return reading_ns + self.network_ns + self.io_ns - self.worked_ns

    def executed(self, worked_ns: int) -> None:
        """Set the work before the response; ``worked_ns`` is the connection's work by now."""
        self.worked_ns = self.io_ns + worked_ns - self._worked_from_ns

    def sent(self, worked_ns: int, now_ns: int) -> None:
        """Set the work and time until the response was sent."""
        self.network_ns = worked_ns - self._worked_from_ns
        self.total_ns = now_ns - self.received_ns

    def failed(self, now_ns: int) -> None:
        """Set the time until the connection was closed without a response."""
        self.total_ns = now_ns - self.received_ns


def count_records(request: ProduceRequest, body: memoryview) -> int:
    """Return the number of records of a Produce request with records as positions in ``body``."""
    total = 0
    for topic in request.topic_data:
        partitions = topic.partition_data
        if len(partitions) > SEARCHED_MAX:
            partitions = partitions[:SEARCHED_MAX]
        for data in partitions:
            batch: Any = data.records  # a range of positions
            if batch is not None and batch.stop - batch.start >= HEADER_BYTES:
                count = _COUNT(body, batch.start + _COUNT_POSITION)[0]
                if count > 0:
                    total += count
    return total


def count_batch_records(batch: memoryview) -> int:
    """Return the number of records in the header of a batch; 0 if it is none."""
    if len(batch) < HEADER_BYTES:
        return 0
    return max(int(_COUNT(batch, _COUNT_POSITION)[0]), 0)


def first_error(response: Struct | None) -> int:
    """Return the first error code of a response, or 0 if there is none."""
    find = None if response is None else _finder(type(response))
    return 0 if find is None else int(find(response))


@cache
def _finder(of: type[Struct]) -> Callable[[Any], int] | None:
    """Return a function that finds the first error in messages of a type, or None."""
    lists = [
        (field.name, find)
        for field in of.__fields__
        if isinstance(field.kind, Array)
        and isinstance(field.kind.element, type)
        and (find := _finder(field.kind.element)) is not None
    ]
    codes = [attrgetter(field.name) for field in of.__fields__ if field.means is Meaning.ERROR]
    if not lists:
        return codes[0] if codes else None

    def find_first(found: Any) -> int:
        for own_code in codes:
            if code := own_code(found):
                return int(code)
        for name, find in lists:
            entries = getattr(found, name) or ()
            if len(entries) > SEARCHED_MAX:
                entries = entries[:SEARCHED_MAX]
            for entry in entries:
                if code := find(entry):
                    return int(code)
        return 0

    return find_first

"""Builds the activity event of a request: its cost, and the results of quota checks.

Owns how an event is built from what the request handler measured. It must never know streams, or
how events are sent. Invariant: figures are the ones that quotas and metrics recorded, never
separate measurements; building an event takes some microseconds, whatever the client sends. Kafka's
``RequestChannel`` builds the lines of its request log likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from struct import Struct as Layout
from typing import TYPE_CHECKING, Any, Final

from minibroker.broker.connections.address import client_ip
from minibroker.broker.network.activity_sender import NAME_CHARACTERS_MAX
from minibroker.lab.activity.events import ActivityClient, Check, Ordinals, Request
from minibroker.runtime.clock import whole_ms
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.records import HEADER_BYTES
from minibroker_protocol.schema import Array, Struct

if TYPE_CHECKING:
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.request_cost import QuotaChecks, RequestCost
    from minibroker.broker.quotas.manager import QuotaCheck
    from minibroker_protocol.messages.produce import ProduceRequest

SEARCHED_MAX: Final = 1000
"""Elements of a list that are searched for an error or a batch: bounds the cost of an event."""

_COUNT: Final = Layout(">i").unpack_from
_COUNT_POSITION: Final = HEADER_BYTES - 4
"""Position of the number of records in a batch."""


def request_event(time_us: int, cost: RequestCost) -> Request:
    """Return the event of a request after its quota checks."""
    header, quota_checks, mutated = cost.header, cost.checks, cost.mutated
    assert quota_checks is not None
    mutations = mutation = None
    if mutated is not None:
        mutation = mutated.check
        if mutated.requested:
            mutations = mutated.requested, mutated.rejected, mutated.strict
    checks = places = None
    if quota_checks.request or quota_checks.produce or quota_checks.fetch or mutation:
        checks, places = _packed_checks(quota_checks, mutation), _ordinals(quota_checks, mutation)
    return (
        time_us,
        whole_ms(cost.now),
        activity_client(cost.client, header.client_id or ""),
        int(header.api_key),
        header.api_version,
        cost.request_bytes,
        cost.response_bytes,
        cost.records,
        mutations,
        cost.exempt,
        cost.queue_ns,
        cost.network_ns,
        cost.io_ns,
        cost.total_ns,
        cost.worked_ns,
        cost.later_time,
        checks,
        places,
        quota_checks.throttle_ms,
        cost.error,
    )


def activity_client(client: ClientConnection, client_id: str) -> ActivityClient:
    """Return the sender of a request; reused for consecutive requests, to pack faster."""
    caller, known = client.caller, client.activity_client
    user = caller.principal.name
    if known is not None and known[4] == client_id and known[3] == user:
        return known
    names = user[:NAME_CHARACTERS_MAX], client_id[:NAME_CHARACTERS_MAX]
    if known is None or known[3:] != names:
        known = caller.listener, client.number, client_ip(caller.client_host), *names
        client.activity_client = known
    return known


def _packed_checks(
    quota_checks: QuotaChecks, mutation: QuotaCheck | None
) -> tuple[Check | None, Check | None, Check | None, Check | None]:
    produce, fetch, request = quota_checks.produce, quota_checks.fetch, quota_checks.request
    return (
        None if produce is None else _packed_check(produce),
        None if fetch is None else _packed_check(fetch),
        None if request is None else _packed_check(request),
        None if mutation is None else _packed_check(mutation),
    )


def _ordinals(quota_checks: QuotaChecks, mutation: QuotaCheck | None) -> Ordinals:
    first, time = quota_checks.produce or quota_checks.fetch or mutation, quota_checks.request
    if first is None:
        assert time is not None  # One of them exists.
        return time.ordinal, None, None
    separate = None if time is None or time.ordinal == first.ordinal else time.ordinal
    return first.ordinal, separate, quota_checks.taken_back


def _packed_check(check: QuotaCheck) -> Check:
    _, (user, client_id), rate, bound, throttle_ms, now_ms, _ = check
    user, client_id = user[: 3 * NAME_CHARACTERS_MAX], client_id[:NAME_CHARACTERS_MAX]
    return user, client_id, rate, None if bound is None else bound.value, throttle_ms, now_ms


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

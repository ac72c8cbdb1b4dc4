"""A request as the recorder is told of it: what it cost, and what the quotas found.

Owns how an event is put together from what an exchange knows; it must never know a stream, nor how
events travel. Invariant: figures are those that quotas and metrics counted, not others measured
beside; and it costs some microseconds, whatever a client sends. Kafka's ``RequestChannel`` puts
together the lines of its request log likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import islice
from struct import Struct as Layout
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from minibroker.activity.events import Check, Request
from minibroker.activity.events import Client as ToldAs
from minibroker.connections.address import client_ip
from minibroker.network.telling import NAME_CHARACTERS_MAX
from minibroker.quotas.entity import QuotaType
from minibroker.runtime.clock import whole_ms
from protocol.records import HEADER_BYTES
from protocol.schema import Array, Struct

if TYPE_CHECKING:
    from minibroker.network.client import Client
    from minibroker.network.metering import Spent
    from minibroker.quotas.manager import Look, Mutated
    from protocol.messages.produce import ProduceRequest

LOOKED_AT_MAX: Final = 1000
"""Entries of a list in which an error or a batch is looked for: an event may cost so much."""

_COUNT: Final = Layout(">i").unpack_from
_COUNT_POSITION: Final = HEADER_BYTES - 4
"""Where in a batch the number of its records stands."""


class Figures(NamedTuple):
    """What an exchange measured in nanoseconds: ``times`` are those in queues, worked by network
    and by I/O, and in all; ``late`` is what was worked too late for a check, and in milliseconds
    of the broker's clock when that was counted.
    """

    times: tuple[int, int, int, int]
    late: tuple[int, int] | None


def request_event(
    time_us: int,
    client: Client,
    spent: Spent,
    figures: Figures,
    *,
    records: int | None,
    mutated: Mutated | None,
) -> Request:
    """The event of a request that was carried out, and that quotas have looked at."""
    header, looks = spent.header, spent.looks
    assert looks is not None
    assert looks.now is not None
    wanted = None
    if mutated is not None and mutated.wanted:
        wanted = mutated.wanted, mutated.refused, mutated.strict
    return (
        time_us,
        whole_ms(looks.now),
        told_as(client, header.client_id or ""),
        int(header.api_key),
        header.api_version,
        spent.request_bytes,
        spent.response_bytes,
        records,
        wanted,
        spent.exempt,
        *figures.times,
        spent.worked_ns,
        figures.late,
        _checks(looks.found, None if mutated is None else mutated.look),
        looks.throttle_ms,
        first_error(spent.response),
    )


def told_as(client: Client, client_id: str) -> ToldAs:
    """Who sent a request; the same object for one after the other, which packs in less time."""
    user = client.caller.principal.name[:NAME_CHARACTERS_MAX]
    client_id = client_id[:NAME_CHARACTERS_MAX]
    known = client.told_as
    if known is None or known[4] != client_id or known[3] != user:
        listener, number = client.caller.listener, client.number
        known = listener, number, client_ip(client.caller.client_host), user, client_id
        client.told_as = known
    return known


def _checks(
    found: dict[QuotaType, Look], mutation: Look | None
) -> tuple[Check | None, Check | None, Check | None, Check | None] | None:
    if not found and mutation is None:
        return None
    return (
        _check(found.get(QuotaType.PRODUCE)),
        _check(found.get(QuotaType.FETCH)),
        _check(found.get(QuotaType.REQUEST)),
        _check(mutation),
    )


def _check(look: Look | None) -> Check | None:
    if look is None:
        return None
    _, (user, client_id), rate, bound, throttle_ms, now_ms = look
    user, client_id = user[: 3 * NAME_CHARACTERS_MAX], client_id[:NAME_CHARACTERS_MAX]
    return user, client_id, rate, None if bound is None else bound.value, throttle_ms, now_ms


def count_records(request: ProduceRequest, body: memoryview) -> int:
    """The records that a Produce request says it has; its records fields are places in it."""
    total = 0
    for topic in request.topic_data:
        for data in islice(topic.partition_data, LOOKED_AT_MAX):
            batch = cast("range | None", data.records)
            if batch is not None and len(batch) >= HEADER_BYTES:
                total += max(0, _COUNT(body, batch.start + _COUNT_POSITION)[0])
    return total


def first_error(response: Struct | None) -> int:
    """The error code of a response, or the first one in it; 0 if there is none."""
    find = None if response is None else _finder(type(response))
    return 0 if find is None else find(response)


@cache
def _finder(of: type[Struct]) -> Callable[[Any], int] | None:
    """What finds the first error in messages of a type; None if they can't have one."""
    lists = [
        (field.name, find)
        for field in of.__fields__
        if isinstance(field.kind, Array)
        and isinstance(field.kind.element, type)
        and (find := _finder(field.kind.element)) is not None
    ]
    has_code = any(field.name == "error_code" for field in of.__fields__)
    if not lists:
        return (lambda found: int(found.error_code)) if has_code else None

    def find_first(found: Any) -> int:
        if has_code and found.error_code:
            return int(found.error_code)
        for name, find in lists:
            for entry in islice(getattr(found, name) or (), LOOKED_AT_MAX):
                code = find(entry)
                if code:
                    return code
        return 0

    return find_first

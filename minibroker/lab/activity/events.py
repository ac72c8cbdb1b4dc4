"""Events between processes: plain tuples, which are cheapest to create and to serialize.

Owns their layout and the serialization of a chunk. It must never know when events occur or how they
are written to the topic. Invariant: the first field of an event is its time, by which events are
sorted, and all fields are types of ``marshal``, so a chunk takes a fraction of a microsecond per
event. For processes of one run only, because ``marshal`` differs between Python versions.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from minibroker_protocol.records import Record

UNWRITTEN_MAX: Final = 16_384
"""Events of one process that the recorder may hold unwritten; further ones wait in the process."""

ActivityClient: TypeAlias = tuple[str, int, str, str, str]
"""Listener, number of the connection, address, user, client-id."""

Peer: TypeAlias = tuple[str, int, str]
"""Listener, number of the connection, address."""

Check: TypeAlias = tuple[str, str, float, float | None, int, int]
"""A quota check: user, client-id, rate, quota, throttle in ms, time on the broker's clock."""

LaterTime: TypeAlias = tuple[int, int, int | None]
"""Time that was recorded after the response: nanoseconds, when on the broker's clock, ordinal."""

Ordinals: TypeAlias = tuple[int, int | None, int | None]
"""Ordinals of the first check, of the time check if it is separate, and of subtracted bytes."""

Request: TypeAlias = tuple[
    int,  # time_us
    int,  # clock_ms
    ActivityClient,
    int,  # api_key
    int,  # api_version
    int,  # request_bytes
    int,  # response_bytes
    int | None,  # records
    tuple[int, int, bool] | None,  # mutations, those refused, strict
    bool,  # exempt
    int,  # queue_ns
    int,  # network_ns
    int,  # io_ns
    int,  # total_ns
    int,  # checked_ns
    LaterTime | None,
    tuple[Check | None, Check | None, Check | None, Check | None] | None,
    # produce, fetch, request, mutation
    Ordinals | None,
    int,  # throttle_ms
    int,  # error_code
]

ConnectionActivity: TypeAlias = tuple[
    int,  # time_us
    int,  # clock_ms
    Peer,
    str,  # happened
    str | None,  # reason
    int | None,  # delay_ms
]

Dropped: TypeAlias = tuple[
    int,  # time_us
    int,  # clock_ms
    int,  # events that were dropped before this one
]
"""Created by the recorder only."""

ActivityEvent: TypeAlias = Request | ConnectionActivity
"""What processes send to the recorder."""

WrittenEvent: TypeAlias = Request | ConnectionActivity | Dropped
"""What the recorder writes."""

REQUEST_FIELDS: Final = 20
CONNECTION_ACTIVITY_FIELDS: Final = 6
DROPPED_FIELDS: Final = 3
"""Numbers of fields, which distinguish the kinds of events."""


def event_record(event: WrittenEvent, value: bytes) -> Record:
    """Return a record with the time of an event."""
    # Half the cost of creating one with keyword arguments.
    return Record._make((0, event[0] // 1000, None, value, ()))


def pack(events: Sequence[ActivityEvent]) -> bytes:
    """Serialize events as a chunk."""
    return marshal.dumps(list[Any](events))


def unpack(chunk: bytes) -> list[ActivityEvent]:
    """Return the events of a chunk that a process of this run has serialized."""
    events: list[ActivityEvent] = marshal.loads(chunk)  # noqa: S302 - packed by this broker
    return events

"""Events as one process hands them to another: plain tuples, which cost least to make and to pack.

Owns their layout and how a chunk of them is packed; it must never know when they are made, nor
what they look like when they are written. Invariant: an event begins with its time, by which
events are put in order, and is made of what ``marshal`` knows, so a chunk is packed in a fraction
of a microsecond an event. Between processes of one run only: another Python may pack otherwise.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

UNWRITTEN_MAX: Final = 16_384
"""Events of one process that the recorder may have and not have written; more wait for that."""

Client: TypeAlias = tuple[str, int, str, str, str]
"""Listener, number of the connection, address, user, client-id."""

Peer: TypeAlias = tuple[str, int, str]
"""Listener, number of the connection, address."""

Check: TypeAlias = tuple[str, str, float, float | None, int, int]
"""A look at a quota: user, client-id, rate, bound, throttle in ms, when on the broker's clock."""

Late: TypeAlias = tuple[int, int, int | None]
"""Worked time that was counted late, when on the broker's clock, and its ordinal."""

Places: TypeAlias = tuple[int, int | None, int | None]
"""Ordinals: of the first look, of the one at time if it is another, of what was given back."""

Request: TypeAlias = tuple[
    int,  # time_us
    int,  # clock_ms
    Client,
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
    Late | None,
    tuple[Check | None, Check | None, Check | None, Check | None] | None,
    # produce, fetch, request, mutation
    Places | None,
    int,  # throttle_ms
    int,  # error_code
]

Happening: TypeAlias = tuple[
    int,  # time_us
    int,  # clock_ms
    Peer,
    str,  # happened
    str | None,  # reason
    int | None,  # delay_ms
]

Event: TypeAlias = Request | Happening


def pack(events: Sequence[Event]) -> bytes:
    """A chunk of events."""
    return marshal.dumps(list[Any](events))


def unpack(chunk: bytes) -> list[Event]:
    """The events of a chunk that a process of this run has packed."""
    events: list[Event] = marshal.loads(chunk)  # noqa: S302 - packed by this broker
    return events

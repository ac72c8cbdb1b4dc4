"""The broker's clock in the control API: read, advance, freeze and speed it up.

Owns its records and operations. It must never know what waits for the clock. Invariant: a change is
answered when every process has checked its deadlines. Kafka's tests use a ``MockTime`` in one
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from minibroker.broker.process.environment import note_clock
from minibroker.broker.process.messages import ClockAdvanced
from minibroker.lab.control.operation import Operations
from minibroker.lab.errors import ApiError
from minibroker.lab.schema import Doc, Fault, InvalidJson, Range
from minibroker.runtime.clock import ADVANCE_MS_MAX, RATE_MAX, RATE_MIN, ClockError

if TYPE_CHECKING:
    from minibroker.lab.control.broker import ControlledBroker


class ClockView(NamedTuple):
    """The clock that all processes of the broker share."""

    now: Annotated[float, Doc("Monotonic seconds from an arbitrary start.")]
    wall_ms: Annotated[int, Doc("Milliseconds since 1970, as in record timestamps.")]
    offset_ms: Annotated[float, Doc("How far the broker's clock is ahead of the system clock.")]
    rate: Annotated[float, Doc("Broker seconds a real second.")]
    frozen: Annotated[bool, Doc("True if the clock is stopped.")]


class ClockChange(NamedTuple):
    """A change of the clock, with at least one of the fields.

    `freeze` and `rate` take effect first, then `advance_ms`.
    """

    advance_ms: Annotated[
        int | None, Range(0, ADVANCE_MS_MAX), Doc("Advance the clock by this time.")
    ] = None
    freeze: Annotated[bool | None, Doc("Stop the clock, or let it continue.")] = None
    rate: Annotated[
        float | None, Range(RATE_MIN, RATE_MAX), Doc("Broker seconds a real second.")
    ] = None


CLOCK_OPERATIONS: Final = Operations()


@CLOCK_OPERATIONS.add("GET", "/v1/clock")
async def get_clock(broker: ControlledBroker) -> ClockView:
    """Return the clock that all processes of the broker share."""
    state = broker.env.clock.state()
    return ClockView(state.now, state.wall_ms, state.offset_ms, state.rate, state.frozen)


@CLOCK_OPERATIONS.add("POST", "/v1/clock", example={"advance_ms": 11000})
async def turn_clock(broker: ControlledBroker, change: ClockChange) -> ClockView:
    """Advance, freeze or speed up the clock; return the new state of the clock."""
    if change == ClockChange():
        fault = Fault("(body)", "must set at least one of advance_ms, freeze and rate")
        raise InvalidJson([fault])
    clock = broker.env.clock
    before = clock.wall_ms()
    try:
        if change.freeze is not None:
            clock.freeze(change.freeze)
        if change.rate is not None:
            clock.set_rate(change.rate)
        if change.advance_ms is not None:
            clock.advance(change.advance_ms)
    except ClockError as error:
        raise ApiError("INVALID_CLOCK", str(error)) from None
    note_clock(broker.env, before)
    await broker.publisher.request_all(ClockAdvanced())
    return await get_clock(broker)

"""State machine of a client connection.

Pure: no sockets, no clock. The states are Kafka's ``KafkaChannel.ChannelMuteState``. A connection
is read only while no request of it is in flight, so requests are answered in order, one at a time,
and a client that floods one connection delays only itself. The table below is complete: any other
event is a bug, and its error contains the history.

    NOT_MUTED --REQUEST_RECEIVED--> MUTED --RESPONSE_READY--> RESPONSE_PENDING
        ^                             |                              |
        +-------NO_RESPONSE-----------+<-------RESPONSE_SENT---------+   (back to NOT_MUTED)

A client that exceeds a quota gets its response and is then muted for a while (KIP-219). The
throttle starts before the response. The connection is read again when both have happened: the
response was sent and the throttle has ended.

    MUTED --THROTTLE_STARTED--> HELD --RESPONSE_READY--> THROTTLED_RESPONSE_PENDING
                                 |                          |                 |
                            NO_RESPONSE               RESPONSE_SENT    THROTTLE_ENDED
                                 |                          v                 v
                                 +---------------------> THROTTLED     RESPONSE_PENDING
                                                            +-THROTTLE_ENDED-> NOT_MUTED

If responses are delayed instead, HELD ends with THROTTLE_ENDED and the connection is MUTED again.

Invariant: at most one request of a connection is in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

HISTORY_MAX: Final = 8


class ChannelState(StrEnum):
    """State of a connection."""

    NOT_MUTED = "reading"
    MUTED = "muted"
    RESPONSE_PENDING = "responding"
    HELD = "held"
    THROTTLED_RESPONSE_PENDING = "responding, throttled"
    THROTTLED = "throttled"
    CLOSED = "closed"


class ChannelEvent(StrEnum):
    """Event of a connection."""

    REQUEST_RECEIVED = "request received"
    NO_RESPONSE = "no response"
    RESPONSE_READY = "response ready"
    RESPONSE_SENT = "response sent"
    THROTTLE_STARTED = "throttle started"
    THROTTLE_ENDED = "throttle ended"
    CLOSE = "close"


TRANSITIONS: Final[Mapping[ChannelState, Mapping[ChannelEvent, ChannelState]]] = {
    ChannelState.NOT_MUTED: {
        ChannelEvent.REQUEST_RECEIVED: ChannelState.MUTED,
        ChannelEvent.CLOSE: ChannelState.CLOSED,
    },
    ChannelState.MUTED: {
        ChannelEvent.RESPONSE_READY: ChannelState.RESPONSE_PENDING,
        ChannelEvent.NO_RESPONSE: ChannelState.NOT_MUTED,
        ChannelEvent.THROTTLE_STARTED: ChannelState.HELD,
        ChannelEvent.CLOSE: ChannelState.CLOSED,
    },
    ChannelState.RESPONSE_PENDING: {
        ChannelEvent.RESPONSE_SENT: ChannelState.NOT_MUTED,
        ChannelEvent.CLOSE: ChannelState.CLOSED,
    },
    ChannelState.HELD: {
        ChannelEvent.RESPONSE_READY: ChannelState.THROTTLED_RESPONSE_PENDING,
        ChannelEvent.NO_RESPONSE: ChannelState.THROTTLED,
        ChannelEvent.THROTTLE_ENDED: ChannelState.MUTED,
        ChannelEvent.CLOSE: ChannelState.CLOSED,
    },
    ChannelState.THROTTLED_RESPONSE_PENDING: {
        ChannelEvent.RESPONSE_SENT: ChannelState.THROTTLED,
        ChannelEvent.THROTTLE_ENDED: ChannelState.RESPONSE_PENDING,
        ChannelEvent.CLOSE: ChannelState.CLOSED,
    },
    ChannelState.THROTTLED: {
        ChannelEvent.THROTTLE_ENDED: ChannelState.NOT_MUTED,
        ChannelEvent.CLOSE: ChannelState.CLOSED,
    },
    ChannelState.CLOSED: {},
}


class InvalidChannelTransition(Exception):
    """An event that is impossible in a state; the text contains the preceding events."""

    def __init__(
        self, state: ChannelState, event: ChannelEvent, history: tuple[ChannelEvent, ...]
    ) -> None:
        story = ", ".join(history) or "nothing"
        super().__init__(f"{event.name} in state {state.name}, after: {story}")
        self.state = state
        self.event = event
        self.history = history


class ConnectionState:
    """State of one connection, and the last events that led to it."""

    __slots__ = ("_history", "state")

    def __init__(self) -> None:
        self.state = ChannelState.NOT_MUTED
        self._history: deque[ChannelEvent] = deque(maxlen=HISTORY_MAX)

    def on(self, event: ChannelEvent) -> ChannelState:
        """Return the state after an event. Raises ``InvalidChannelTransition``."""
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise InvalidChannelTransition(self.state, event, tuple(self._history))
        self._history.append(event)
        self.state = after
        return after

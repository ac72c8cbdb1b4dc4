"""Channels between roles with delayed messages, so that roles get out of step.

Owns the delays, which come from a seed; order is kept. A delay counts from the time at which the
message was sent, so that a channel carries any number of messages in a second. Markers of
transactions may be delayed for longer, so that faults happen between the decision and the markers.
Invariant: a delayed message arrives unchanged, or never if an end is closed before, as on a real
channel.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import trio

from minibroker.broker.process.messages import ApiPart
from minibroker.runtime.addressing import ChannelListener, MemoryTransport
from minibroker.runtime.rpc import (
    Channel,
    ChannelClosed,
    ChannelStatistics,
    MemoryChannel,
)
from minibroker_protocol.registry import ApiKey

LAG_S: Final = 0.02
"""The longest delay of one message; the shares below say how many are delayed."""
MARKER_LAG_S: Final = 2.0
MARKER_SHARE: Final = 0.1
SHARES: Final = (0.0, 0.1, 0.5)


class LaggingChannel(Channel):
    """One end whose messages arrive late."""

    crosses_processes = False

    def __init__(self, inner: Channel, random: Random) -> None:
        self._inner = inner
        self._random = random
        self._share = random.choice(SHARES)

    async def send(self, message: object) -> None:
        await self._inner.send((trio.current_time(), message))

    async def receive(self) -> Any:
        sent, message = await self._inner.receive()
        if _has_markers(message) and self._random.random() < MARKER_SHARE:
            await trio.sleep(self._random.uniform(0, MARKER_LAG_S))
            if self._is_sender_gone():  # Its next incarnation may have sent them again.
                raise ChannelClosed("the other side is gone")
        elif self._random.random() < self._share:
            await trio.sleep_until(sent + self._random.uniform(0, LAG_S))
        return message

    def _is_sender_gone(self) -> bool:
        inner = self._inner
        assert isinstance(inner, MemoryChannel)
        return not inner._incoming.statistics().open_send_channels

    def receive_nowait(self) -> Any:
        _, message = self._inner.receive_nowait()
        return message

    def close(self) -> None:
        self._inner.close()

    def statistics(self) -> ChannelStatistics:
        return self._inner.statistics()


def _has_markers(message: Any) -> bool:
    """Whether a message between roles is a request to write markers."""
    payload = message[-1] if isinstance(message, tuple) and message else None
    return isinstance(payload, ApiPart) and payload.api_key == ApiKey.WRITE_TXN_MARKERS


class LaggingTransport(MemoryTransport):
    """Joins roles by lagging channels."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def listen(self, name: str) -> ChannelListener[Channel]:
        inner = super().listen(name)

        async def accept() -> Channel:
            return LaggingChannel(await inner.accept(), self._random)

        return ChannelListener(accept)

    async def connect(self, name: str) -> Channel:
        return LaggingChannel(await super().connect(name), self._random)

"""Client connections: the client and its request in flight, what it may do next, and its bytes.

Owns the facts that request handling, console and log need (``ClientConnection``), the state machine
of a connection (``ConnectionState``), its bytes up to a complete request (``RequestReader``), and
which connections are closed because they are idle or too slow. It must never decode a request, or
write a response.

Invariant: at most one request of a connection is in flight, and everything that a client chose is
bounded in length. Memory for the body of a request is taken from the processor's part of the arena
after its length was checked, so the size of the arena limits the memory of all requests; while it
is full, nothing more is read. Kafka's ``KafkaChannel``, ``NetworkReceive``, ``MemoryPool`` (KIP-72)
and ``Selector.IdleExpiryManager``.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import trio

from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.apis.base import Caller
from minibroker.broker.connections.limits import client_ip
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.settings import SOCKET_REQUEST_MAX_BYTES
from minibroker.runtime.arena import ArenaPart, Block
from minibroker.runtime.clock import Clock
from minibroker.runtime.request_memory import Claim, TooManyWaiting
from minibroker.runtime.stream import ByteStream
from minibroker.runtime.worktime import Account

if TYPE_CHECKING:
    from minibroker.broker.security.authentication import Authentication


SHOWN_MAX: Final = 200
"""Characters kept of texts that a client chooses."""


class ConnectionReport(NamedTuple):
    """A connection as the control API shows it; times in seconds of the broker's clock."""

    number: int
    connection_id: str
    listener: str
    host: str
    port: int
    principal: str
    client_id: str | None
    software_name: str | None
    software_version: str | None
    opened: float
    used: float
    state: str
    in_flight: int | None


class ClientConnection:
    """One open connection."""

    __slots__ = (
        "accepted",
        "account",
        "accounted_ns",
        "authentication",
        "caller",
        "client_id",
        "close_reason",
        "close_text",
        "in_flight",
        "interruptible",
        "is_new",
        "needs_checks",
        "opened",
        "reader",
        "scope",
        "session_expires_at",
        "software",
        "start_task",
        "state",
        "stream",
        "throttle_end",
    )

    def __init__(
        self,
        accepted: AcceptedConnection,
        stream: ByteStream,
        now: float,
        connected_to: tuple[str, int] | None = None,
    ) -> None:
        host, port = accepted.peer
        self.accepted = accepted
        # Canonical form of the address, which host rules and principals compare.
        self.caller = Caller(
            accepted.connection_id,
            accepted.listener,
            client_ip(host),
            port,
            connected_to=connected_to,
        )
        self.stream = stream
        self.opened = now
        self.state = ConnectionState()
        self.account = Account()
        self.accounted_ns = 0
        """Worked time up to the end of the last request."""
        self.scope = trio.CancelScope()
        self.start_task: Callable[[ClientConnection], None] | None = None
        """Starts the connection's task; None if it has one, or has ended."""
        self.is_new = True
        """Whether no request of the connection was received yet."""
        self.reader: RequestReader | None = None
        self.authentication: Authentication | None = None
        self.session_expires_at: float | None = None
        """Time by which the client must have reauthenticated, or None if it need not."""
        self.client_id: str | None = None
        self.software: tuple[str, str] | None = None
        self.in_flight: int | None = None
        self.throttle_end: trio.Event | None = None
        """Set when the current throttle ends."""
        self.interruptible = True
        """Whether closing the connection now would interrupt nothing but a wait."""
        self.needs_checks = False
        """Whether an observer needs the results of its quota checks."""
        self.close_reason = CloseReason.CLIENT_CLOSED
        self.close_text = ""

    @property
    def number(self) -> int:
        """Number that identifies the connection in all processes."""
        return self.accepted.number

    def set_software(self, name: str, version: str) -> None:
        """Keep the client software's name and version (ApiVersions, KIP-511)."""
        self.software = (name[:SHOWN_MAX], version[:SHOWN_MAX])
        self.caller = self.caller._replace(software=self.software)

    def throttle(self) -> None:
        """Mute the connection until `end_throttle`."""
        self.state.on(ChannelEvent.THROTTLE_STARTED)
        self.throttle_end = trio.Event()

    def end_throttle(self) -> None:
        """End the throttle."""
        assert self.throttle_end is not None
        self.state.on(ChannelEvent.THROTTLE_ENDED)
        self.throttle_end.set()

    def close(self, reason: CloseReason, text: str = "") -> None:
        """Close the connection for a reason of the broker; its tasks are cancelled."""
        self.close_reason = reason
        self.close_text = text
        self.scope.cancel()
        if self.start_task is not None:
            self.start_task(self)  # It closes the connection and records that.

    def view(self, used: float) -> ConnectionReport:
        """Return the facts to show; the connection was last used at ``used``."""
        name, version = self.software or (None, None)
        shown = None if self.client_id is None else self.client_id[:SHOWN_MAX]
        return ConnectionReport(
            self.number,
            self.caller.connection_id,
            self.caller.listener,
            self.caller.client_host,
            self.caller.client_port,
            str(self.caller.principal)[:SHOWN_MAX],
            shown,
            name,
            version,
            self.opened,
            used,
            self.state.state.value,
            self.in_flight,
        )


# The state machine -------------------------------------------------------------------------------

HISTORY_MAX: Final = 8


class ChannelState(StrEnum):
    """State of a connection. Kafka's ``KafkaChannel.ChannelMuteState``."""

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


# A connection is read only while no request of it is in flight, so requests are answered in order,
# one at a time, and a client that floods one connection delays only itself. The table is complete:
# any other event is a bug, and its error contains the history.
#
#     NOT_MUTED --REQUEST_RECEIVED--> MUTED --RESPONSE_READY--> RESPONSE_PENDING
#         ^                             |                              |
#         +-------NO_RESPONSE-----------+<-------RESPONSE_SENT---------+   (back to NOT_MUTED)
#
# A client that exceeds a quota gets its response and is then muted for a while (KIP-219). The
# throttle starts before the response. The connection is read again when both have happened: the
# response was sent and the throttle has ended.
#
#     MUTED --THROTTLE_STARTED--> HELD --RESPONSE_READY--> THROTTLED_RESPONSE_PENDING
#                                  |                          |                 |
#                             NO_RESPONSE               RESPONSE_SENT    THROTTLE_ENDED
#                                  |                          v                 v
#                                  +---------------------> THROTTLED     RESPONSE_PENDING
#                                                             +-THROTTLE_ENDED-> NOT_MUTED
#
# If responses are delayed instead, HELD ends with THROTTLE_ENDED and the connection is MUTED again.
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


# Receiving: four bytes of length, then the body directly into shared memory ----------------------

SCRATCH_BYTES: Final = 32 * 1024
"""Bytes read at once before the length is known; most requests fit."""

LENGTH_BYTES: Final = 4

_TLS_HANDSHAKE: Final = b"\x16\x03"
_HTTP_STARTS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PRI ")


class InvalidRequestSize(Exception):
    """Bytes that are not a request; ``reason`` is counted, and the text is logged."""

    def __init__(self, reason: CloseReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class RequestReader:
    """Splits the bytes of one connection into request bodies.

    A request that has not arrived completely makes a claim for memory, which may be evicted if its
    bytes arrive too slowly.

    ``number`` identifies the connection and ``address`` its client, for claims. ``now`` returns
    real seconds, independent of the broker's clock. ``scratch`` may be shared by all readers of a
    process: it is used only between two waits.
    """

    __slots__ = (
        "_address",
        "_buffered",
        "_filled",
        "_now",
        "_number",
        "_part",
        "_request_bytes_max",
        "_scratch",
        "_setting",
        "_stream",
    )

    def __init__(
        self,
        stream: ByteStream,
        part: ArenaPart,
        request_bytes_max: int,
        scratch: memoryview,
        now: Callable[[], float],
        *,
        number: int,
        address: str,
    ) -> None:
        self._stream = stream
        self._number = number
        self._address = address
        self._part = part
        self._request_bytes_max = request_bytes_max
        self._setting = SOCKET_REQUEST_MAX_BYTES.name
        self._scratch = scratch
        self._now = now
        self._buffered = b""
        self._filled = 0

    @contextmanager
    def bounded(self, request_bytes_max: int, setting: str) -> Iterator[None]:
        """Context in which a request may not exceed the value of a setting."""
        before = self._request_bytes_max, self._setting
        self._request_bytes_max, self._setting = min(before[0], request_bytes_max), setting
        try:
            yield
        finally:
            self._request_bytes_max, self._setting = before

    async def next(self) -> Block | None:
        """Return the next body, in memory that the caller releases; None when the client
        disconnected.

        Raises ``InvalidRequestSize``, or ``StreamClosed`` from the stream.
        """
        body = await self.next_body()
        if not isinstance(body, bytes):
            return body
        try:
            return await self.store(body)
        except BaseException:  # Kept if a wait is cancelled.
            self._buffered = len(body).to_bytes(LENGTH_BYTES, "big") + body + self._buffered
            raise

    async def next_body(self) -> bytes | Block | None:
        """Return the next body as ``next`` does, or as bytes if it arrived at once.

        At most ``SCRATCH_BYTES`` of each connection are outside of the shared memory.
        """
        while len(self._buffered) < LENGTH_BYTES:
            count = await self._stream.receive_into(self._scratch)
            if count == 0:
                if self._buffered:
                    raise _partial_request(len(self._buffered), LENGTH_BYTES)
                return None
            self._buffer(count)
        body = self.buffered_body()
        return await self._receive(self._checked_size(self._buffered)) if body is None else body

    def received(self, count: int) -> bytes | None:
        """Take ``count`` bytes from scratch; return the next body if it has arrived completely.

        Raises ``InvalidRequestSize``.
        """
        self._buffer(count)
        return self.buffered_body()

    def buffered_body(self) -> bytes | None:
        """Return the next body if it has been received completely."""
        data = self._buffered
        if len(data) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + self._checked_size(data)
        if len(data) < end:
            return None
        self._buffered = data[end:]
        return data[LENGTH_BYTES:end]

    @property
    def has_buffered(self) -> bool:
        """Whether bytes of the next request were received."""
        return bool(self._buffered)

    def _buffer(self, count: int) -> None:
        data = self._scratch[:count]
        self._buffered = self._buffered + data if self._buffered else bytes(data)

    async def store(self, body: bytes) -> Block:
        """Copy a body into shared memory that the caller releases."""
        size = len(body)
        block = self._part.allocate_nowait(size)
        if block is None:
            block = await self._allocate(Claim(self._number, self._address, size, is_complete=True))
        block.view[:] = body
        return block

    def arrived(self) -> int:
        """Number of received bytes of the current body."""
        return self._filled + self._stream.arrived()

    async def _receive(self, size: int) -> Block:
        """Receive the rest of a body that has not arrived completely."""
        claim = Claim(self._number, self._address, size)
        block = await self._allocate(claim)
        try:
            body = self._buffered[LENGTH_BYTES:]
            self._buffered = b""
            self._filled = filled = len(body)
            block.view[:filled] = body
            claim.since = self._now()
            filled += await self._stream.receive_exactly(block.view[filled:])
            if filled < size:
                raise _partial_request(filled, size)
        except BaseException:
            self._part.finish(claim)
            block.release()
            raise
        self._part.finish(claim)
        return block

    async def _allocate(self, claim: Claim) -> Block:
        try:
            block = self._part.claim(claim)
        except TooManyWaiting as error:
            raise InvalidRequestSize(CloseReason.LIMIT, str(error)) from None
        return await self._part.wait_granted(claim) if block is None else block

    def _checked_size(self, data: bytes) -> int:
        size = int.from_bytes(data[:LENGTH_BYTES], "big", signed=True)
        if 0 < size <= self._request_bytes_max:
            return size
        if data.startswith(_TLS_HANDSHAKE):
            raise InvalidRequestSize(
                CloseReason.BAD_FRAME, "a TLS handshake: this listener has no TLS"
            )
        if data.startswith(_HTTP_STARTS):
            raise InvalidRequestSize(
                CloseReason.BAD_FRAME, "an HTTP request: this port serves the Kafka protocol"
            )
        if size <= 0:
            raise InvalidRequestSize(CloseReason.BAD_FRAME, f"a request claims {size} bytes")
        raise InvalidRequestSize(
            CloseReason.FRAME_TOO_LARGE,
            f"a request claims {size} bytes; {self._setting} is {self._request_bytes_max}",
        )


def _partial_request(received: int, expected: int) -> InvalidRequestSize:
    return InvalidRequestSize(
        CloseReason.PARTIAL_REQUEST,
        f"the client disconnected {expected - received} bytes before the end of its request",
    )


# Idle and slow connections ------------------------------------------------------------------------

Name = TypeVar("Name", bound=Hashable)


class IdleConnections(Generic[Name]):
    """Times of the last use by name, in their order: ``connections.max.idle.ms``.

    The cost of finding idle ones depends only on their number.
    """

    def __init__(self) -> None:
        self._used: OrderedDict[Name, float] = OrderedDict()

    def use(self, name: Name, now: float) -> None:
        """Note the use of a name, possibly the first."""
        self._used[name] = now
        self._used.move_to_end(name)

    def forget(self, name: Name) -> None:
        """Forget a name."""
        self._used.pop(name, None)

    def last_use(self, name: Name) -> float | None:
        """Return when a name was last used, or None if it is unknown."""
        return self._used.get(name)

    def in_order(self) -> Iterator[tuple[Name, float]]:
        """Iterate over names and times of last use, longest idle first."""
        return iter(self._used.items())

    def idle_since(self, before: float) -> list[Name]:
        """Return the names last used at ``before`` or earlier, longest idle first."""
        idle: list[Name] = []
        for name, used in self._used.items():
            if used > before:
                break
            idle.append(name)
        return idle

    def oldest_use(self) -> float | None:
        """Return when the longest idle name was last used, or None without names."""
        return next(iter(self._used.values()), None)


EVICTION_INTERVAL_S: Final = 0.25
"""How often claims are checked while others wait."""


async def evict_slow_claims(
    part: ArenaPart, clients: Mapping[int, ClientConnection], clock: Clock
) -> None:
    """Close connections whose requests arrive too slowly while others wait for their memory.

    Run until cancelled; ``clients`` are the open connections by their numbers. Real time counts: a
    frozen clock must not let a slow client delay others.
    """

    def arrived(claim: Claim) -> int:
        reader = clients[claim.connection].reader
        assert reader is not None
        return reader.arrived()

    while True:
        await part.wait_contended()
        await clock.sleep_real(EVICTION_INTERVAL_S)
        now = clock.real_s()
        for claim in part.evict(now, arrived):
            assert claim.since is not None
            text = f"{claim.arrived} bytes of a request of {claim.size} had arrived in "
            text += f"{now - claim.since:.1f} s, and others wait for its memory"
            clients[claim.connection].close(CloseReason.SLOW_CLIENT, text)

"""A server that answers clients as recorded in a capture.

Owns its listener and connections, which recorded response comes next and when, and what of it is
changed. Invariant: a connection gets its responses in the order of its requests; a request without
a recorded response closes it. Ids in responses stay as recorded, so that the client uses the
recorded ones; only the correlation id, the addresses of brokers and repeated records are changed.
Kafka's ``MockClient`` answers requests of a test in the same way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from minibroker.broker.settings.setting import HostPort
from minibroker.lab.proxy.exchange import can_name_brokers, rewrite, translate_addresses
from minibroker.lab.replay.capture import (
    TEACHING,
    Capture,
    Captured,
    IdMapping,
    SharedIds,
    learn_response,
    mapped_request,
)
from minibroker_protocol.compiler import decode
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.framing import FrameDecoder
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import RequestHeader, decode_request_header

# ---------------------------------------------- The requests of a capture, sent to a broker as load
# Owns the connections, the order and the pace. It must never know what a request means. Invariant:
# a request is sent after the responses that its client may have known when it sent it: those that
# came before it on its own connection, and those that teach ids on any. Kafka has no equivalent.


PATIENCE_S: Final = 30.0
"""Longest wait for a response that a request depends on; it is sent then without it."""


@dataclass
class ReplayReport:
    """What became of the requests."""

    sent: int = 0
    answered: int = 0
    unanswered: int = 0
    """Requests whose connection ended, or whose response did not come in time."""
    differing: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    """API key, recorded and new error code of responses with another error than recorded."""
    seconds: float = 0.0


async def replay_load(
    capture: Capture, host: str, port: int, *, speed: float | None = 1.0
) -> ReplayReport:
    """Send all requests; ``speed`` 2 is twice as fast as recorded, None as fast as possible.

    Raises ``OSError`` if the broker cannot be reached.
    """
    report = ReplayReport()
    replay = _Replay(capture.requests, host, port, speed, report)
    await replay.run()
    return report


class _Replay:
    """One replay of all connections."""

    def __init__(
        self,
        requests: Sequence[Captured],
        host: str,
        port: int,
        speed: float | None,
        report: ReplayReport,
    ) -> None:
        self.address = host, port
        self.report = report
        self.shared = SharedIds()
        self.answers = {each.order: trio.Event() for each in requests}
        """Set when the response to a request has come, or will not come."""
        self._requests = requests
        self._speed = speed
        self._teaching = sorted(
            (each.answered_order, each.order)
            for each in requests
            if each.answered_order is not None and each.header.api_key in TEACHING
        )

    async def run(self) -> None:
        """Replay every connection in a task of its own."""
        by_connection: dict[str, list[Captured]] = {}
        for each in self._requests:
            by_connection.setdefault(each.connection, []).append(each)
        self._started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for requests in by_connection.values():
                nursery.start_soon(_Connection(self, requests).run)
        self.report.seconds = trio.current_time() - self._started

    async def wait_turn(self, request: Captured, own: list[Captured], known: int) -> int:
        """Wait until a request may be sent; return how many teaching responses were awaited.

        ``own`` are requests before it on its connection; those that were awaited are removed.
        """
        if self._speed is not None:
            after_s = (request.clock_ms - self._requests[0].clock_ms) / 1000 / self._speed
            await trio.sleep_until(self._started + after_s)
        with trio.move_on_after(PATIENCE_S):
            for each in [each for each in own if _order_of_answer(each) < request.order]:
                await self.answers[each.order].wait()
                own.remove(each)
            while known < len(self._teaching) and self._teaching[known][0] < request.order:
                await self.answers[self._teaching[known][1]].wait()
                known += 1
        return known


def _order_of_answer(request: Captured) -> int:
    assert request.answered_order is not None
    return request.answered_order


class _Connection:
    """The requests of one recorded connection, on a connection of their own."""

    def __init__(self, replay: _Replay, requests: Sequence[Captured]) -> None:
        self._replay = replay
        self._requests = requests
        self._mapping = IdMapping(replay.shared)
        self._waiting: dict[int, Captured] = {}
        """Requests whose responses have not come, by correlation id."""
        self._changed = trio.Event()

    async def run(self) -> None:
        """Send the requests, and wait for their responses."""
        known, own = 0, list[Captured]()
        await self._replay.wait_turn(self._requests[0], own, known)
        stream = await trio.open_tcp_stream(*self._replay.address)
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._receive, stream, nursery.cancel_scope)
            try:
                for request in self._requests:
                    known = await self._replay.wait_turn(request, own, known)
                    await self._send(stream, request)
                    if request.answered_order is not None:
                        own.append(request)
                with trio.move_on_after(PATIENCE_S):
                    while self._waiting:
                        await self._changed.wait()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # What was not answered is counted below.
            nursery.cancel_scope.cancel()
        for request in self._requests:
            event = self._replay.answers[request.order]
            if request.answered_order is not None and not event.is_set():
                self._replay.report.unanswered += 1
            event.set()

    async def _send(self, stream: trio.SocketStream, request: Captured) -> None:
        frame = mapped_request(request, self._mapping)
        if request.answered_order is not None:
            self._waiting[request.header.correlation_id] = request
        await stream.send_all(len(frame).to_bytes(4, "big") + frame)
        self._replay.report.sent += 1

    async def _receive(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        decoder = FrameDecoder()
        try:
            while data := await stream.receive_some(RECEIVE_BYTES):
                decoder.receive(data)
                while (frame := decoder.next_frame()) is not None:
                    self._received(frame)
        except (trio.BrokenResourceError, DecodeError):
            pass
        scope.cancel()

    def _received(self, frame: bytes) -> None:
        request = self._waiting.pop(int.from_bytes(frame[:4], "big", signed=True), None)
        if request is None:
            return
        report = self._replay.report
        report.answered += 1
        recorded, live = learn_response(request, frame, self._mapping)
        if recorded != live:
            report.differing[request.header.api_key, recorded, live] += 1
        self._replay.answers[request.order].set()
        self._changed.set()
        self._changed = trio.Event()


RECEIVE_BYTES: Final = 64 * 1024
FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
REPEATED_S: Final = 0.1
"""Delay of a repeated response, so that a client that polls does not loop."""


async def serve_capture(
    capture: Capture,
    listening: HostPort,
    on_ready: Callable[[HostPort], None],
    *,
    speed: float | None = 1.0,
) -> None:
    """Serve until cancelled; ``on_ready`` gets the address. ``speed`` as in `replay_load`."""
    answers = RecordedAnswers(capture.requests)
    listeners = await trio.open_tcp_listeners(listening.port, host=listening.host)
    address = HostPort(listening.host, listeners[0].socket.getsockname()[1])

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await _serve_client(stream, answers, address, speed)

    on_ready(address)
    await trio.serve_listeners(serve, listeners)


async def _serve_client(
    stream: trio.SocketStream, answers: RecordedAnswers, address: HostPort, speed: float | None
) -> None:
    decoder = FrameDecoder(limit=FRAME_BYTES_MAX)
    try:
        while data := await stream.receive_some(RECEIVE_BYTES):
            decoder.receive(data)
            while (frame := decoder.next_frame()) is not None:
                if not await _answer(stream, frame, answers, address, speed):
                    return
    except (trio.BrokenResourceError, DecodeError, UnsupportedVersion):
        return


async def _answer(
    stream: trio.SocketStream,
    frame: bytes,
    answers: RecordedAnswers,
    address: HostPort,
    speed: float | None,
) -> bool:
    """Answer one request; return False if there is no response to it."""
    header, at = decode_request_header(frame)
    if header.api_key == ApiKey.PRODUCE and _has_no_response(header.api_version, frame, at):
        return True
    found = answers.take(header, frame[at:])
    if found is None:
        return False
    captured, is_repeated = found
    if is_repeated:
        await trio.sleep(REPEATED_S)
    elif speed is not None:
        await trio.sleep(captured.latency_ms / 1000 / speed)
    response = answer_frame(captured, header.correlation_id, address, is_repeated=is_repeated)
    await stream.send_all(len(response).to_bytes(4, "big") + response)
    return True


def _has_no_response(version: int, frame: bytes, at: int) -> bool:
    return decode(ProduceRequest, version, frame, at).acks == 0


# Recorded responses -------------------------------------------------------------------------------

REPEATED: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.API_VERSIONS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    }
)
"""APIs whose last response is repeated if a client requests more often than recorded."""

_Key = tuple[int, int] | tuple[int, int, str | None] | tuple[int, int, str | None, bytes]
"""API key and version of a request; its client id; its body."""


class RecordedAnswers:
    """The responses of a capture, in the recorded order of each API and version."""

    def __init__(self, requests: Sequence[Captured]) -> None:
        self._waiting: dict[_Key, deque[Captured]] = {}
        self._taken: set[int] = set()
        """Orders of the requests whose responses were given."""
        self._last: dict[_Key, Captured] = {}
        for each in requests:
            if each.response is not None:
                for key in _keys(each.header, _body(each)):
                    self._waiting.setdefault(key, deque()).append(each)

    def take(self, header: RequestHeader, body: bytes) -> tuple[Captured, bool] | None:
        """Return the next recorded request and whether its response was given before.

        The response to an equal request of the same client id comes first, then those to other
        requests of it, so that clients whose requests come in another order than recorded get the
        topics that they ask for. None if there is none.
        """
        equal, *others = _keys(header, body)
        repeated = self._last if header.api_key in REPEATED else {}
        found = self._pop(equal)
        if found is None and equal in repeated:
            return repeated[equal], True
        for key in others:
            found = found or self._pop(key)
        if found is not None:
            self._last.update(dict.fromkeys(_keys(found.header, _body(found)), found))
            return found, False
        last = next((repeated[key] for key in others if key in repeated), None)
        return None if last is None else (last, True)

    def _pop(self, key: _Key) -> Captured | None:
        waiting = self._waiting.get(key, ())
        while waiting:
            found = waiting.popleft()
            if found.order not in self._taken:
                self._taken.add(found.order)
                return found
        return None


def _keys(header: RequestHeader, body: bytes) -> tuple[_Key, _Key, _Key]:
    """What a request may have in common with a recorded one, the most first."""
    kind = header.api_key, header.api_version
    return (*kind, header.client_id, body), (*kind, header.client_id), kind


def _body(captured: Captured) -> bytes:
    _, at = decode_request_header(captured.frame)
    return captured.frame[at:]


def answer_frame(
    captured: Captured, correlation_id: int, address: HostPort, *, is_repeated: bool
) -> bytes:
    """Return a recorded response for a live request."""
    assert captured.response is not None
    key, version = captured.header.api_key, captured.header.api_version
    frame = captured.response
    try:
        if can_name_brokers(key, version):
            frame = rewrite(key, version, frame, lambda response, of: _at(response, of, address))
        if is_repeated and key == ApiKey.FETCH:
            frame = rewrite(key, version, frame, _without_records)
    except DecodeError:
        pass  # Sent as it was recorded.
    return correlation_id.to_bytes(4, "big", signed=True) + frame[4:]


def _at(response: Any, version: int, address: HostPort) -> bool:
    return translate_addresses(response, version, lambda _: address)


def _without_records(response: Any, _version: int) -> bool:
    for topic in response.responses:
        for partition in topic.partitions:
            partition.records = b""
    return True

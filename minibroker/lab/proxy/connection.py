"""One client's connection through the proxy to one broker: its two streams, and what passes.

Owns whole frames on the streams, how a broker is connected to, with or without TLS, and why that
failed, and the handshake with a client that uses TLS; passes requests and responses on in their
order, and lets fault rules act on those that they match. It must never know listeners or other
connections. A request that a rule matches waits until those before it are answered, and those after
it wait for it, as in a broker. The modules for TLS are loaded for the first connection with it.
Invariants: when either side ends, both are closed, and a frame that no rule and no address concerns
passes byte by byte; a frame above the limit of its direction ends the connection before its bytes
are kept, and a stream is read only when a frame is asked for, so a slow receiver slows its sender
down. A connection that is returned can be used: with TLS, the handshake is done and the broker's
certificate is verified. Kafka's ``SslTransportLayer`` of a client.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import trio

from minibroker.broker.apis.base import CloseConnection
from minibroker.broker.connections.limits import client_ip
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.interception import InterceptorDisconnect
from minibroker.broker.settings.setting import HostPort
from minibroker.lab.faults.execution import FaultExecutor, RequestFaults
from minibroker.lab.faults.fault_rule import ActiveRule
from minibroker.lab.faults.matching import ConnectionAttributes, RequestMatches
from minibroker.lab.proxy.exchange import (
    Exchange,
    ProxiedRequest,
    TopicNames,
    UnexpectedFrame,
    can_name_brokers,
    decode_response,
    is_too_new,
    limit_versions,
    rewrite,
    translate_addresses,
    unsupported_api_versions,
)
from minibroker.lab.proxy.journal import ConnectionRecorder, JournaledProcess
from minibroker.lab.proxy.namespace import NamespaceAcls, NamespaceNames, is_about_acls
from minibroker.runtime.stream import ByteStream, SocketStream, StreamClosed
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.errors import DecodeError, ErrorCode, ProtocolError
from minibroker_protocol.framing import FrameDecoder
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.fetch import FetchResponse
from minibroker_protocol.messages.metadata import MetadataResponse
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import (
    RequestHeader,
    decode_request_header,
    encode_request_header,
    encode_response_header,
)

if TYPE_CHECKING:
    import ssl

REQUEST_BYTES_MAX: Final = 100 * 1024 * 1024
"""Size of a request: Kafka's default of ``socket.request.max.bytes``."""

RESPONSE_BYTES_MAX: Final = 512 * 1024 * 1024
"""Size of a response: a fetch may have more than its limit if its first batch does."""

READ_BYTES: Final = 64 * 1024
"""Bytes that are read at once."""

JOINED_BYTES_MAX: Final = 64 * 1024
"""Frames up to this size are sent in one piece with their length."""

LENGTH_BYTES: Final = 4
_TLS_HANDSHAKE: Final = b"\x16\x03"


class UpstreamLost(Exception):
    """The broker closed its connection, or cannot be reached; the text says why."""


class ClientNotSecured(Exception):
    """The TLS handshake with the client failed; the text says why."""


class ListenFailed(Exception):
    """The proxy cannot listen for a broker; the text says why."""


class FrameReader:
    """The frames that arrive on a stream."""

    def __init__(self, stream: ByteStream, limit: int) -> None:
        self._stream = stream
        self._decoder = FrameDecoder(limit=limit)
        self._scratch = memoryview(bytearray(READ_BYTES))
        self._is_first = True

    async def next_frame(self) -> bytes | None:
        """The next frame without its length; None if the stream has ended.

        Raises ``UnexpectedFrame`` or ``StreamClosed``.
        """
        while True:
            try:
                frame = self._decoder.next_frame()
            except DecodeError as error:
                raise UnexpectedFrame(str(error)) from None
            if frame is not None:
                self._is_first = False
                return frame
            waits = self._stream.waits
            count = await self._stream.receive_into(self._scratch)
            if count == 0:
                return None
            if self._is_first and bytes(self._scratch[:count]).startswith(_TLS_HANDSHAKE):
                raise UnexpectedFrame("TLS; start the proxy with --tls for clients that use it")
            self._decoder.receive(self._scratch[:count])
            if self._stream.waits == waits:  # Others have their turn even if this one never waits.
                await trio.lowlevel.checkpoint()

    async def discard_bytes(self) -> None:
        """Read and drop bytes until the stream ends."""
        while await self._stream.receive_into(self._scratch):
            pass


def with_length(frame: bytes) -> bytes:
    """A frame as it is sent."""
    return len(frame).to_bytes(LENGTH_BYTES, "big") + frame


async def send_frame(stream: ByteStream, frame: bytes) -> None:
    """Send a frame with its length. Raises ``StreamClosed``."""
    if len(frame) <= JOINED_BYTES_MAX:
        await stream.send_all(with_length(frame))
    else:
        await stream.send_all(len(frame).to_bytes(LENGTH_BYTES, "big"), more=True)
        await stream.send_all(frame)


# Brokers ------------------------------------------------------------------------------------------

CONNECT_S: Final = 10.0
"""How long a connection to a broker may take, with the handshake of TLS, or that of a client."""

ANSWER_S: Final = 10.0
"""How long a broker may take to answer ApiVersions."""

ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Size of a response to ApiVersions, which real ones are far below."""

_HELLO: Final = RequestHeader(ApiKey.API_VERSIONS, 0, 1, "minibroker-proxy")
_CORRELATION_ID: Final = _HELLO.correlation_id.to_bytes(4, "big")


async def connect(broker: HostPort, tls: ssl.SSLContext | None) -> ByteStream:
    """Connect to a broker. Raises ``UpstreamLost``."""
    with trio.move_on_after(CONNECT_S):
        stream = await _connected(broker)
        return stream if tls is None else await _secured(broker, stream, tls)
    raise _unreachable(broker, f"no connection within {CONNECT_S:g} s")


async def check_broker(broker: HostPort, tls: ssl.SSLContext | None) -> None:
    """Let a broker answer ApiVersions, for which clients need not log in. Raises ``UpstreamLost``.

    So a listener that requires TLS is noticed, and one of something else than a broker.
    """
    stream = await connect(broker, tls)
    try:
        with trio.move_on_after(ANSWER_S):
            header = encode_request_header(_HELLO)
            await send_frame(stream, header + encode(ApiVersionsRequest(), _HELLO.api_version))
            answer = await FrameReader(stream, ANSWER_BYTES_MAX).next_frame()
            if answer is not None and answer.startswith(_CORRELATION_ID):
                return
    except (StreamClosed, UnexpectedFrame):
        pass  # As without an answer.
    finally:
        stream.close()
    advice = "" if tls else "; if its listener requires TLS, name a file by --command-config"
    raise _unreachable(broker, f"it does not answer requests{advice}")


async def _connected(broker: HostPort) -> SocketStream:
    try:
        return byte_stream(await trio.open_tcp_stream(broker.host, broker.port))
    except OSError as error:
        cause = error.__cause__
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        reason = getattr(cause, "strerror", None) or str(error)
    raise _unreachable(broker, reason)


async def _secured(broker: HostPort, inner: SocketStream, context: ssl.SSLContext) -> ByteStream:
    from minibroker.broker.network.tls import TlsHandshakeFailed, TlsStream
    from minibroker.broker.security.handshakes import explain_tls_failure

    stream = TlsStream(inner, context, server_side=False, server_hostname=broker.host)
    is_secured = False
    try:
        await stream.handshake()
        is_secured = True
    except TlsHandshakeFailed as error:
        raise _unreachable(broker, explain_tls_failure(error.failure, "--upstream")) from None
    except StreamClosed:
        failure = OSError("the broker disconnected")
        raise _unreachable(broker, explain_tls_failure(failure, "--upstream")) from None
    finally:
        if not is_secured:  # Also if it took too long.
            stream.close()
    return stream


def _unreachable(broker: HostPort, reason: str) -> UpstreamLost:
    return UpstreamLost(f"broker {broker} can't be reached: {reason}")


def byte_stream(stream: trio.SocketStream) -> SocketStream:
    """The socket of a stream; a response is sent at once, not held back for more bytes."""
    sock = socket.socket(fileno=stream.socket.detach())
    with suppress(OSError):  # The peer has disconnected; reading will report it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return SocketStream(sock)


_SESSION_VERSION: Final = 7
"""Version of Fetch from which there are sessions (KIP-227)."""

_NO_SESSION: Final = -1
"""Epoch of a fetch that names all its partitions, and for which no session is kept."""


class ConnectionScope(Protocol):
    """What the connections of a proxy share."""

    @property
    def executor(self) -> FaultExecutor:
        """The fault rules."""

    @property
    def topic_names(self) -> TopicNames:
        """The names of topic ids."""

    @property
    def namespace(self) -> NamespaceNames | None:
        """The namespace to which clients are confined, if there is one."""

    @property
    def process(self) -> JournaledProcess:
        """The process, which records for the journal."""

    @property
    def client_tls(self) -> ssl.SSLContext | None:
        """The context of connections with clients; None if they are PLAINTEXT."""

    async def connect(self, broker: HostPort) -> ByteStream:
        """Connect to a broker. Raises ``UpstreamLost``."""

    def local_address(self, broker: HostPort, seen_from: str) -> HostPort:
        """The proxy's address for a broker, for a client that is connected to ``seen_from``.

        Raises ``ListenFailed`` if the proxy cannot listen for it.
        """


def _tls(client: ByteStream, context: ssl.SSLContext) -> ByteStream:
    from minibroker.broker.network.tls import TlsStream

    return TlsStream(client, context)


async def _secure_client(client: ByteStream) -> None:
    """Perform the handshake with a client. Raises ``ClientNotSecured``, ``StreamClosed``."""
    from minibroker.broker.network.tls import TlsHandshakeFailed, TlsStream

    assert isinstance(client, TlsStream)
    with trio.move_on_after(CONNECT_S):
        try:
            return await client.handshake()
        except TlsHandshakeFailed as error:
            raise ClientNotSecured(str(error)) from None
    raise ClientNotSecured(f"the TLS handshake was not completed within {CONNECT_S:g} s")


class ConnectionEnd(NamedTuple):
    """Why a connection was closed."""

    reason: CloseReason
    text: str

    @property
    def is_problem(self) -> bool:
        """Whether it needs attention."""
        return self.reason not in _ORDINARY


_ORDINARY: Final = frozenset(
    {
        CloseReason.CLIENT_CLOSED,
        CloseReason.CLIENT_RESET,
        CloseReason.FAULT_RULE,
        CloseReason.STOPPING,
    }
)

_REASONS: Final[tuple[tuple[type[Exception], CloseReason], ...]] = (
    (InterceptorDisconnect, CloseReason.FAULT_RULE),
    (StreamClosed, CloseReason.CLIENT_RESET),
    (UpstreamLost, CloseReason.PEER_LOST),
    (ClientNotSecured, CloseReason.TLS_FAILED),
    (UnexpectedFrame, CloseReason.BAD_REQUEST),
    (ProtocolError, CloseReason.BAD_REQUEST),
    (CloseConnection, CloseReason.ACKS_ZERO_ERROR),
    (ListenFailed, CloseReason.INTERNAL_ERROR),
)
"""What ends a connection, and the reason in the journal."""


class _Reply:
    """The response to a request that a rule has matched."""

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.frame = b""


class ProxiedConnection:
    """Implements ``faults.execution.FaultedConnection``."""

    def __init__(
        self, number: int, broker: HostPort, client: ByteStream, scope: ConnectionScope
    ) -> None:
        self.number = number
        self.broker = broker
        self.client_address = client.peer
        self.end = ConnectionEnd(CloseReason.STOPPING, "")
        self._client = client if scope.client_tls is None else _tls(client, scope.client_tls)
        self._requests = FrameReader(self._client, REQUEST_BYTES_MAX)
        self._scope = scope
        self._exchange = Exchange()
        self._upstream: ByteStream | None = None
        self._reply: _Reply | None = None
        self._moved = trio.Event()
        self._is_silent = False
        self._cancel_scope = trio.CancelScope()
        self._recorder = ConnectionRecorder(
            scope.process, number, (client_ip(client.peer[0]), client.peer[1]), str(broker)
        )
        translate = partial(self._scope.local_address, seen_from=client.local[0])
        self._translate: Callable[[HostPort], HostPort] = translate

    async def run(self) -> None:
        """Pass requests and responses on until one side ends; sets ``end``."""
        self._recorder.opened()
        try:
            with self._cancel_scope:
                await self._guard(self._open)
                if self._upstream is not None:
                    await self._pass_on(FrameReader(self._upstream, RESPONSE_BYTES_MAX))
        finally:
            self._client.close()
            if self._upstream is not None:
                self._upstream.close()
            self._recorder.closed(self.end.reason.value, self.end.text, self._exchange.client_id)

    async def _open(self) -> None:
        await self._scope.executor.meet(self)
        if self._scope.client_tls is not None:
            await _secure_client(self._client)
        self._upstream = await self._scope.connect(self.broker)

    async def _pass_on(self, responses: FrameReader) -> None:
        async def until_end(pump: Callable[[], Awaitable[None]]) -> None:
            await self._guard(pump)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_end, self._pass_requests)
            nursery.start_soon(until_end, partial(self._pass_responses, responses))

    async def _guard(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take a step, and note why it ended the connection."""
        try:
            await step()
        except tuple(kind for kind, _ in _REASONS) as error:
            reason = next(reason for kind, reason in _REASONS if isinstance(error, kind))
            self.end = ConnectionEnd(reason, str(error))

    # Requests ---------------------------------------------------------------------------------

    async def _pass_requests(self) -> None:
        while (frame := await self._requests.next_frame()) is not None:
            request = self._recorder.request(self._exchange.read(frame), frame)
            if self._scope.namespace is not None and not request.is_token:
                if is_about_acls(request.api_key, request.version):
                    await self._serve_acls(request, frame, self._scope.namespace.acls)
                    continue
                frame = self._scope.namespace.request(*request[:2], frame)
            if request.is_token or not await self._serve(request, frame):
                await self._forward(request, frame)
        self.end = ConnectionEnd(CloseReason.CLIENT_CLOSED, "")

    async def _serve(self, request: ProxiedRequest, frame: bytes) -> bool:
        """Serve a request that does not simply pass; return False for one that does."""
        if is_too_new(request.api_key, request.version):
            if request.api_key != ApiKey.API_VERSIONS:
                name = ApiKey(request.api_key).name
                raise UnexpectedFrame(
                    f"{name} version {request.version} is newer than the proxy can read, and not "
                    "among the versions that it offers"
                )
            await self._drained()
            await self._answer(request, unsupported_api_versions(request.correlation_id))
            return True
        executor = self._scope.executor
        if not executor.matcher.rules or not executor.matcher.concerns(frame):
            return False
        return await self._serve_by_rules(request, frame)

    async def _serve_by_rules(self, request: ProxiedRequest, frame: bytes) -> bool:
        try:
            schema = registry.schema(request.api_key)
            if not schema.valid_versions.has(request.version):
                return False
            header, at = decode_request_header(frame)
            message: Any = decode(schema.request, request.version, frame, at)
        except ProtocolError:
            return False  # The broker judges it.
        ends_session = (
            request.api_key == ApiKey.FETCH
            and request.version >= _SESSION_VERSION
            and self._scope.executor.matcher.forbids_fetch_sessions
        )
        if ends_session and message.session_epoch > 0:
            await self._drained()
            await self._send(request, _session_not_found(), None)
            return True
        was_changed = ends_session and message.session_epoch == 0
        if was_changed:
            message.session_epoch = _NO_SESSION
        matches = self._scope.executor.match(
            self.attributes(), header, message, self._scope.topic_names.get
        )
        if matches is None:
            if was_changed:
                frame = frame[:at] + encode(message, request.version)
                await self._forward(request, frame)
            return was_changed
        await self._drained()
        await self._serve_matched(request, header, message, matches, frame[:at])
        return True

    async def _serve_matched(
        self,
        request: ProxiedRequest,
        header: RequestHeader,
        message: Any,
        matches: RequestMatches,
        header_bytes: bytes,
    ) -> None:
        async def run() -> Any:
            frame = header_bytes + encode(message, request.version)
            return await self._ask(request, frame)

        response, faults = await self._scope.executor.execute(self, header, message, matches, run)
        if response is not None:
            await self._send(request, response, faults)
        if faults is not None:
            await faults.mute()

    async def _serve_acls(self, request: ProxiedRequest, frame: bytes, acls: NamespaceAcls) -> None:
        header, at = decode_request_header(frame)

        async def ask(message: Message) -> Any:
            key = ApiKey(message.__api_key__ or 0)
            frame = encode_request_header(header._replace(api_key=key))
            return await self._ask(
                request._replace(api_key=key), frame + encode(message, request.version)
            )

        message = decode(registry.schema(request.api_key).request, request.version, frame, at)
        await self._drained()
        await self._send(request, await acls.serve(message, ask), None)

    async def _ask(self, request: ProxiedRequest, frame: bytes) -> Any:
        """Send a request, and return its response; None if it has none."""
        if not request.has_response:
            await self._forward(request, frame)
            return None
        reply = self._reply = _Reply()
        await self._forward(request, frame)
        await reply.arrived.wait()
        response, _, _ = decode_response(request.api_key, request.version, reply.frame)
        return response

    async def _send(
        self, request: ProxiedRequest, response: Any, faults: RequestFaults | None
    ) -> None:
        header = encode_response_header(*request[:3])
        frame = header + encode(response, request.version)
        if faults is None:
            await self._answer(request, frame)
        else:
            damaged = faults.damaged(with_length(frame))
            self._recorder.response(request, damaged[LENGTH_BYTES:])
            await faults.send(with_length(frame))

    async def _answer(self, request: ProxiedRequest, frame: bytes) -> None:
        self._recorder.response(request, frame)
        await send_frame(self._client, frame)

    async def _forward(self, request: ProxiedRequest, frame: bytes) -> None:
        while self._exchange.is_full:
            await self._moved.wait()
        self._exchange.forwarded(request)
        assert self._upstream is not None
        try:
            await send_frame(self._upstream, frame)
        except StreamClosed as error:
            raise UpstreamLost(f"broker {self.broker} disconnected: {error}") from None

    async def _drained(self) -> None:
        """Wait until all requests so far are answered."""
        while not self._exchange.is_idle:
            await self._moved.wait()

    # Responses --------------------------------------------------------------------------------

    async def _pass_responses(self, responses: FrameReader) -> None:
        while (frame := await self._next_response(responses)) is not None:
            request = self._exchange.match(frame)
            frame = self._changed(request, frame)
            if self._reply is not None:
                self._reply.frame = frame
                self._reply.arrived.set()
                self._reply = None
            else:
                await self._answer(request, frame)
            self._exchange.complete()
            self._moved.set()
            self._moved = trio.Event()
        if self._is_silent:
            await trio.sleep_forever()  # Until the client disconnects.
        raise UpstreamLost(f"broker {self.broker} closed the connection")

    async def _next_response(self, responses: FrameReader) -> bytes | None:
        try:
            return await responses.next_frame()
        except StreamClosed as error:
            raise UpstreamLost(f"broker {self.broker} disconnected: {error}") from None

    def _changed(self, request: ProxiedRequest, frame: bytes) -> bytes:
        """A response with the proxy's addresses, and the versions that the proxy can read."""
        key, version = request.api_key, request.version
        if request.is_token:
            return frame
        if self._scope.namespace is not None:
            frame = self._scope.namespace.response(key, version, frame)
        if key == ApiKey.API_VERSIONS:
            return rewrite(key, version, frame, lambda response, _: limit_versions(response))
        if can_name_brokers(key, version):
            return rewrite(key, version, frame, self._translate_all)
        return frame

    def _translate_all(self, response: Any, version: int) -> bool:
        if isinstance(response, MetadataResponse):
            self._scope.topic_names.learn(response)
        return translate_addresses(response, version, self._translate)

    # Rules ------------------------------------------------------------------------------------

    def attributes(self) -> ConnectionAttributes:
        """What rules can select about it; the listener is the broker's own address."""
        host = client_ip(self.client_address[0])
        return ConnectionAttributes(
            self.number, str(self.broker), host, "", self._exchange.client_id
        )

    def note_fired(self, active: ActiveRule, header: RequestHeader | None) -> None:
        """Record that a rule fired: for a request with this header, or for the connection."""
        self._recorder.fired(active, header, self._exchange.client_id)

    async def send(self, data: bytes) -> None:
        """Send bytes to the client."""
        await self._client.send_all(data)

    def reset_on_close(self) -> None:
        """Let its close send a TCP reset."""
        self._client.reset_on_close()

    def close_for(self, rule_id: str) -> None:
        """Close it for a rule, whatever it does now."""
        self.end = ConnectionEnd(CloseReason.FAULT_RULE, f"rule {rule_id}")
        self._cancel_scope.cancel()

    async def discard_requests(self) -> None:
        """Read and drop requests until the client disconnects."""
        self._is_silent = True
        await self._requests.discard_bytes()

    async def discard_bytes(self) -> None:
        """Read and drop bytes until the client disconnects."""
        await self._requests.discard_bytes()


def _session_not_found() -> FetchResponse:
    return FetchResponse(error_code=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND))

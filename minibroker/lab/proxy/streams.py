"""The streams of a proxy: frames on them, and how a broker is connected to, with or without TLS.

Owns reading and sending whole frames, connecting to a broker, and why that failed. It must never
look into a client's frame. The modules for TLS are loaded for the first connection with it.
Invariant: a frame above the limit of its direction ends the connection before its bytes are kept,
and a stream is read only when a frame is asked for, so a slow receiver slows its sender down. A
connection that is returned can be used: with TLS, the handshake is done and the broker's
certificate is verified. Kafka's ``SslTransportLayer`` of a client.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from minibroker.broker.settings.setting import HostPort
from minibroker.lab.proxy.exchange import UnexpectedFrame
from minibroker.runtime.stream import ByteStream, SocketStream, StreamClosed
from minibroker_protocol.compiler import encode
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.framing import FrameDecoder
from minibroker_protocol.headers import RequestHeader, encode_request_header
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.registry import ApiKey

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
                raise UnexpectedFrame("TLS; the proxy reads requests, so it needs PLAINTEXT")
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
"""How long a connection to a broker may take, with the handshake of TLS."""

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

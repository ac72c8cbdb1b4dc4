"""A connection to one broker, with one request in flight; bootstrap addresses and their security.

Owns the socket, API version negotiation, correlation ids and authentication, and the error messages
for addresses that cannot be reached or speak another protocol. It must never choose a broker, read
a file or import ``ssl``, because most connections use neither TLS nor SASL. Invariant: either a
response is read completely, or the connection is closed; SASL authentication completes before the
first request and is renewed before the session expires (KIP-368). Kafka's ``NetworkClient`` and
``SaslClientAuthenticator`` do this with many requests in flight.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from minibroker import __version__
from minibroker.broker.settings.setting import BadValueError, HostPort, parse_host_port
from minibroker.client.errors import (
    ApiNotSupported,
    BrokerUnreachable,
    ClientError,
    ConnectionDropped,
    InvalidArgument,
    NotConnected,
    Remedy,
    ServerNotVerified,
    check,
)
from minibroker_protocol.compiler import decoder, encode
from minibroker_protocol.errors import EncodeError, ErrorCode, ProtocolError
from minibroker_protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker_protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import Message, Versions
from minibroker_protocol.wire import RequestHeader, decode_response_header, encode_request_header

if TYPE_CHECKING:
    import ssl


DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"


class ClientSecurity(NamedTuple):
    """TLS context and SASL mechanism; without either, the connection is PLAINTEXT.

    ``start_exchange`` starts the mechanism's exchange for a new authentication.
    """

    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    start_exchange: Callable[[], Generator[bytes, bytes, None]] | None = None


PLAINTEXT: Final = ClientSecurity()


class BootstrapServers(NamedTuple):
    """Addresses as ``host:port,host:port``, and how to connect to them."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    security: ClientSecurity = PLAINTEXT


def parse_bootstrap(text: str) -> list[HostPort]:
    """Parse ``host:port,host:port``. Raises `InvalidArgument`, which names the invalid address."""
    addresses = []
    for item in text.split(","):
        try:
            addresses.append(parse_host_port(item.strip()))
        except BadValueError as error:
            raise InvalidArgument(
                f"bootstrap server '{item}': {error}; write host:port, e.g. {DEFAULT_BOOTSTRAP}"
            ) from None
    return addresses


CLIENT_ID: Final = "minibroker-cli"
SOFTWARE_VERSION: Final = __version__.replace("+", "-")
"""The version of a build between releases has a plus sign, which brokers reject."""
RESPONSE_BYTES_MAX: Final = 128 * 1024 * 1024
REQUEST_TIMEOUT_S: Final = 10.0
"""Timeout of connecting, of a response, and of finding a leader or a coordinator."""
REAUTHENTICATE_AT: Final = 0.9
"""Fraction of a session's lifetime after which it is renewed (KIP-368; Kafka uses 85-95 %)."""

NEWEST_VERSION_WITH_TOPIC_NAMES: Final = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
}
"""Newer versions identify topics by id."""

R = TypeVar("R", bound=Message)


class BrokerConnection:
    """A connection to one broker, with the API versions that the broker supports."""

    def __init__(
        self,
        address: HostPort,
        security: ClientSecurity = PLAINTEXT,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.address = address
        self._security = security
        self._correlation_id = 0
        self._reauthenticate_at = math.inf
        self._socket = _connected_socket(address, timeout_s)
        self._versions: dict[int, Versions] = {}
        self._has_answered = self._has_served = False
        try:
            if security.tls is not None:
                self._socket = _with_tls(self._socket, security.tls, address)
            self._fetch_api_versions()
            self._authenticate()
        except ClientError:
            self.close()
            raise

    def send(self, request: Message, response: type[R], version: int | None = None) -> R:
        """Send ``request`` in a version, by default the newest that both sides support.

        Returns the response.
        """
        self._reauthenticate_if_due()
        version = self.version_for(request) if version is None else version
        reply = self._exchange(request, response, version)
        self._has_served = True
        return reply

    def send_without_response(self, request: Message) -> None:
        """Send a request that has no response (Produce with acks 0)."""
        self._reauthenticate_if_due()
        self._write(request, self.version_for(request))

    def close(self) -> None:
        self._socket.close()

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def version_for(self, request: Message) -> int:
        """Return the newest version of a request that both sides support."""
        key = ApiKey(request.__api_key__ or 0)
        known = schema(key).valid_versions
        supported = self._versions.get(key)
        newest = min(known.high, NEWEST_VERSION_WITH_TOPIC_NAMES.get(key, known.high))
        if supported is None or max(supported.low, known.low) > min(supported.high, newest):
            has = f"versions {supported}" if supported else "no version"
            raise ApiNotSupported(f"the broker at {self.address} supports {has} of {key.name}")
        return min(supported.high, newest)

    def _fetch_api_versions(self) -> None:
        request = ApiVersionsRequest(
            client_software_name=CLIENT_ID, client_software_version=SOFTWARE_VERSION
        )
        reply = self._exchange(request, ApiVersionsResponse, 3)
        if reply.error_code == ErrorCode.UNSUPPORTED_VERSION:
            reply = self._exchange(request, ApiVersionsResponse, 0)
        check(f"API versions of {self.address}", reply.error_code)
        self._versions = {
            item.api_key: Versions(item.min_version, item.max_version) for item in reply.api_keys
        }

    def _reauthenticate_if_due(self) -> None:
        if time.monotonic() >= self._reauthenticate_at:
            self._authenticate()

    def _authenticate(self) -> None:
        mechanism, start_exchange = self._security.mechanism, self._security.start_exchange
        if mechanism is None or start_exchange is None:
            return
        what = f"{self.address} rejected authentication with {mechanism}"
        handshake = SaslHandshakeRequest(mechanism=mechanism)
        offered = self._exchange(handshake, SaslHandshakeResponse, self.version_for(handshake))
        enabled = ", ".join(offered.mechanisms) or "none"
        check(what, offered.error_code, f"enabled mechanisms: {enabled}")
        exchange = start_exchange()
        token, lifetime_ms = next(exchange), 0
        with suppress(StopIteration):
            while True:
                request = SaslAuthenticateRequest(auth_bytes=token)
                version = self.version_for(request)
                reply = self._exchange(request, SaslAuthenticateResponse, version)
                check(what, reply.error_code, reply.error_message)
                lifetime_ms = reply.session_lifetime_ms
                try:
                    token = exchange.send(reply.auth_bytes)
                except ServerNotVerified as error:
                    self.close()
                    text = f"{self.address} failed server authentication: {error}"
                    raise BrokerUnreachable(text) from None
        self._reauthenticate_at = math.inf
        if lifetime_ms > 0:
            self._reauthenticate_at = time.monotonic() + REAUTHENTICATE_AT * lifetime_ms / 1000

    def _exchange(self, request: Message, response: type[R], version: int) -> R:
        key = ApiKey(request.__api_key__ or 0)
        try:
            self._write(request, version)
            reply = self._read_frame()
            correlation_id, body = decode_response_header(reply, key, version)
            if correlation_id != self._correlation_id:
                raise BrokerUnreachable(
                    f"{self.address} sent a wrong correlation id: is it a Kafka broker?"
                )
            self._has_answered = True
            return self._decode(reply, body, response, version)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C may interrupt a read, too.
            self.close()  # The next read would start in the middle of this response.
            raise self._client_error(error, key) from None

    def _client_error(self, error: BaseException, key: ApiKey) -> BaseException:
        if isinstance(error, TimeoutError):
            return BrokerUnreachable(f"{self.address}: no answer to {key.name} in time")
        if isinstance(error, OSError):
            return ConnectionDropped(f"{self.address} dropped the connection: {error}")
        if isinstance(error, EncodeError):
            return InvalidArgument(f"an argument of {key.name} cannot be encoded: {error}")
        if isinstance(error, ProtocolError):
            return BrokerUnreachable(
                f"{self.address} sent an invalid response to {key.name}: {error}"
            )
        return error

    def _write(self, request: Message, version: int) -> None:
        self._correlation_id += 1
        key = request.__api_key__ or 0
        header = RequestHeader(key, version, self._correlation_id, CLIENT_ID)
        frame = encode_request_header(header) + encode(request, version)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def _decode(self, reply: bytes, body: int, response: type[R], version: int) -> R:
        if response is ApiVersionsResponse and reply[body : body + 2] == b"\x00\x23":
            version = 0  # UNSUPPORTED_VERSION is sent in the version that every client can read.
        decoded, _ = decoder(response, version)(reply, body)
        return decoded

    def _read_frame(self) -> bytes:
        prefix = self._read_exactly(4)
        protocol = foreign_protocol(prefix)
        if protocol is not None:
            if protocol == "TLS":
                text = f"{self.address} requires TLS"
                raise BrokerUnreachable(text, Remedy.CONFIGURE_SECURITY)
            raise BrokerUnreachable(
                f"{self.address} speaks {protocol}, not Kafka's protocol: "
                "use the port of a Kafka listener"
            )
        (size,) = struct.unpack(">i", prefix)
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            raise BrokerUnreachable(f"{self.address} does not speak Kafka's protocol")
        return self._read_exactly(size)

    def _read_exactly(self, size: int) -> bytes:
        received = bytearray(size)
        view, filled = memoryview(received), 0
        while filled < size:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise self._closed_by_broker()
            filled += count
        return bytes(received)

    def _closed_by_broker(self) -> BrokerUnreachable:
        closed = f"{self.address} closed the connection"
        if not self._has_answered:
            return BrokerUnreachable(
                f"{closed} without an answer; it may be a TLS listener",
                Remedy.CONFIGURE_SECURITY,
            )
        if not self._has_served and self._security.mechanism is None:
            # A listener with SASL closes a connection that sends requests before authentication.
            text = f"{closed}; it may require authentication"
            return ConnectionDropped(text, Remedy.CONFIGURE_SECURITY)
        return ConnectionDropped(closed)


def _connected_socket(address: HostPort, timeout_s: float) -> socket.socket:
    try:
        connected = socket.create_connection(address, timeout_s)
    except ConnectionRefusedError:
        raise NotConnected(f"nothing listens on {address}", Remedy.START_BROKER) from None
    except socket.gaierror as error:
        raise NotConnected(f"{address}: no such host ({error.strerror})") from None
    except OSError as error:
        raise NotConnected(f"{address}: cannot be reached ({error})") from None
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _with_tls(plain: socket.socket, tls: ssl.SSLContext, address: HostPort) -> ssl.SSLSocket:
    """Complete the TLS handshake. Raises `BrokerUnreachable` with the reason of a failure."""
    # Imported late because most connections don't use TLS.
    from minibroker.broker.security.handshakes import explain_tls_failure

    try:
        return tls.wrap_socket(plain, server_hostname=address.host)
    except OSError as error:
        plain.close()
        text = explain_tls_failure(error, "the bootstrap address")
        raise BrokerUnreachable(f"no secure connection to {address}: {text}") from None


def foreign_protocol(prefix: bytes) -> str | None:
    """Name the protocol of a response from its first four bytes; None if it may be Kafka's."""
    if prefix in (b"HTTP", b"http", b"<htm", b"<!DO"):
        return "HTTP"
    if prefix[:2] in (b"\x15\x03", b"\x16\x03"):
        return "TLS"
    if prefix[:4] == b"SSH-":
        return "SSH"
    return None

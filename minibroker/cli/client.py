"""A small synchronous client: one request at a time, to whichever broker must answer it.

Owns connections, the choice of versions, and the words for what people get wrong first: no broker
there, or a port that speaks something else. It must never know a command. Invariant: one request
is in flight on a connection, and a reply is read to its last byte or the connection is dropped;
who has to prove who it is has done so before a command asks anything, and again in time.
Kafka's ``NetworkClient`` does the same for many requests at once.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from minibroker import __version__
from minibroker.cli.errors import CliError, Dropped, Refused, Unreachable, UsageMistake, check
from minibroker.cli.servers import DEFAULT_BOOTSTRAP, OPEN, Access
from minibroker.config.types import BadValueError, HostPort, parse_host_port
from protocol.compiler import decoder, encode
from protocol.errors import EncodeError, ErrorCode, ProtocolError
from protocol.headers import RequestHeader, decode_response_header, encode_request_header
from protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from protocol.registry import ApiKey, schema
from protocol.schema import Message
from protocol.versions import Versions

if TYPE_CHECKING:
    import ssl

CLIENT_ID: Final = "minibroker-cli"
REPLY_BYTES_MAX: Final = 128 * 1024 * 1024
PATIENCE_S: Final = 10.0
"""How long to wait for a connection, a reply, or a leader or coordinator to be there."""
RETRY_PAUSE_S: Final = 0.1
PROVE_AGAIN_AT: Final = 0.9
"""Part of a proof's lifetime after which it is renewed (KIP-368; Kafka's clients take 85-95 %)."""
HOW_TO_BE_LET_IN: Final = "say how to get in with --command-config FILE"

NEWEST_BY_NAME: Final = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
}
"""Newest versions that name topics; from the next one on they go by id."""

NOT_REPEATED: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_GROUPS,
    }
)
"""What may have been done before its connection was dropped, and isn't to be done twice."""

NOT_YET: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Answers that mean: ask again in a moment."""

R = TypeVar("R", bound=Message)


class Connection:
    """One connection to one broker, with the versions that both sides speak."""

    def __init__(
        self, address: HostPort, access: Access = OPEN, timeout_s: float = PATIENCE_S
    ) -> None:
        self.address = address
        self._access = access
        self._correlation_id = 0
        self._prove_again_at = math.inf
        try:
            self._socket = socket.create_connection(address, timeout_s)
        except ConnectionRefusedError:
            raise Unreachable(
                f"nothing listens on {address}; start a broker with `minibroker start`, "
                "or name another one with --bootstrap-server HOST:PORT"
            ) from None
        except socket.gaierror as error:
            raise Unreachable(f"{address}: no such host ({error.strerror})") from None
        except OSError as error:
            raise Unreachable(f"{address}: cannot be reached ({error})") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._served: dict[int, Versions] = {}
        self._has_answered = self._is_let_in = False
        try:
            if access.tls is not None:
                self._socket = _with_tls(self._socket, access.tls, address)
            self._learn_versions()
            self._prove()
        except CliError:
            self.close()
            raise

    def ask(self, request: Message, response: type[R]) -> R:
        """The reply to ``request``, in the newest version that both sides speak."""
        self._prove_in_time()
        reply = self._exchange(request, response, self._version_for(request))
        self._is_let_in = True
        return reply

    def tell(self, request: Message) -> None:
        """Send a request that the broker does not answer (Produce with acks 0)."""
        self._prove_in_time()
        self._send(request, self._version_for(request))

    def close(self) -> None:
        self._socket.close()

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def _version_for(self, request: Message) -> int:
        key = ApiKey(request.__api_key__ or 0)
        known = schema(key).valid_versions
        served = self._served.get(key)
        newest = min(known.high, NEWEST_BY_NAME.get(key, known.high))
        if served is None or max(served.low, known.low) > min(served.high, newest):
            has = f"versions {served}" if served else "no version"
            raise CliError(f"the broker at {self.address} serves {has} of {key.name}")
        return min(served.high, newest)

    def _learn_versions(self) -> None:
        request = ApiVersionsRequest(
            client_software_name=CLIENT_ID, client_software_version=__version__
        )
        reply = self._exchange(request, ApiVersionsResponse, 3)
        if reply.error_code == ErrorCode.UNSUPPORTED_VERSION:
            reply = self._exchange(request, ApiVersionsResponse, 0)
        check(f"{self.address} refuses to say what it serves", reply.error_code)
        self._served = {
            item.api_key: Versions(item.min_version, item.max_version) for item in reply.api_keys
        }

    def _prove_in_time(self) -> None:
        if time.monotonic() >= self._prove_again_at:
            self._prove()

    def _prove(self) -> None:
        """Let the broker know who asks, if anybody wants it to."""
        mechanism, prove = self._access.mechanism, self._access.prove
        if mechanism is None or prove is None:
            return
        from minibroker.cli.proofs import NotTheBroker  # most commands have nothing to prove

        what = f"{self.address} does not let us in with {mechanism}"
        handshake = SaslHandshakeRequest(mechanism=mechanism)
        offered = self._exchange(handshake, SaslHandshakeResponse, self._version_for(handshake))
        check(what, offered.error_code, f"it takes {', '.join(offered.mechanisms) or 'none'}")
        proof = prove()
        token, lifetime_ms = next(proof), 0
        with suppress(StopIteration):
            while True:
                request = SaslAuthenticateRequest(auth_bytes=token)
                version = self._version_for(request)
                reply = self._exchange(request, SaslAuthenticateResponse, version)
                check(what, reply.error_code, reply.error_message)
                lifetime_ms = reply.session_lifetime_ms
                try:
                    token = proof.send(reply.auth_bytes)
                except NotTheBroker as error:
                    self.close()
                    raise Unreachable(f"{self.address} is not to be trusted: {error}") from None
        self._prove_again_at = math.inf
        if lifetime_ms > 0:
            self._prove_again_at = time.monotonic() + PROVE_AGAIN_AT * lifetime_ms / 1000

    def _exchange(self, request: Message, response: type[R], version: int) -> R:
        key = ApiKey(request.__api_key__ or 0)
        try:
            self._send(request, version)
            reply = self._receive_frame()
            correlation_id, body = decode_response_header(reply, key, version)
            if correlation_id != self._correlation_id:
                raise Unreachable(f"{self.address} answered another request: is it Kafka?")
            self._has_answered = True
            return self._decode(reply, body, response, version)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C may come between bytes too
            self.close()  # a reply may be half read, and the next one would begin in its middle
            raise self._explained(error, key) from None

    def _explained(self, error: BaseException, key: ApiKey) -> BaseException:
        if isinstance(error, TimeoutError):
            return Unreachable(f"{self.address} gave no answer to {key.name} in time")
        if isinstance(error, OSError):
            return Dropped(f"{self.address} broke the connection off: {error}")
        if isinstance(error, EncodeError):
            return UsageMistake(f"an argument cannot be sent: {error}")
        if isinstance(error, ProtocolError):
            return Unreachable(f"{self.address} gave an answer that is no {key.name}: {error}")
        return error

    def _send(self, request: Message, version: int) -> None:
        self._correlation_id += 1
        key = request.__api_key__ or 0
        header = RequestHeader(key, version, self._correlation_id, CLIENT_ID)
        frame = encode_request_header(header) + encode(request, version)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def _decode(self, reply: bytes, body: int, response: type[R], version: int) -> R:
        if response is ApiVersionsResponse and reply[body : body + 2] == b"\x00\x23":
            version = 0  # refused in the oldest form, which every client can read
        decoded, _ = decoder(response, version)(reply, body)
        return decoded

    def _receive_frame(self) -> bytes:
        prefix = self._receive_exactly(4)
        what = foreign_protocol(prefix)
        if what is not None:
            raise Unreachable(
                f"{self.address} speaks {what}, not Kafka's protocol: "
                + (HOW_TO_BE_LET_IN if what == "TLS" else "give the port of a Kafka listener")
            )
        (size,) = struct.unpack(">i", prefix)
        if not 4 <= size <= REPLY_BYTES_MAX:
            raise Unreachable(f"{self.address} does not speak Kafka's protocol")
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytes:
        received = bytearray(size)
        view, filled = memoryview(received), 0
        while filled < size:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise self._closed()
            filled += count
        return bytes(received)

    def _closed(self) -> Unreachable:
        said = f"{self.address} closed the connection"
        if not self._has_answered:
            return Unreachable(
                f"{said} without an answer; if it is a Kafka listener with TLS, {HOW_TO_BE_LET_IN}"
            )
        if not self._is_let_in and self._access.mechanism is None:
            # So does a listener with SASL when it is asked before anything is proven.
            return Dropped(f"{said}; if it wants to know who asks, {HOW_TO_BE_LET_IN}")
        return Dropped(said)


def _with_tls(plain: socket.socket, tls: ssl.SSLContext, address: HostPort) -> ssl.SSLSocket:
    """The connection after its handshake; raises `Unreachable` with what is wrong with it."""
    # Few commands need it.
    from minibroker.security.handshakes import why_no_tls

    try:
        return tls.wrap_socket(plain, server_hostname=address.host)
    except OSError as error:
        plain.close()
        text = why_no_tls(error, "--bootstrap-server")
        raise Unreachable(f"no secure connection to {address}: {text}") from None


def foreign_protocol(prefix: bytes) -> str | None:
    """What the first four bytes of a reply belong to, where they are clearly not Kafka's."""
    if prefix in (b"HTTP", b"http", b"<htm", b"<!DO"):
        return "HTTP"
    if prefix[:2] in (b"\x15\x03", b"\x16\x03"):
        return "TLS"
    if prefix[:4] == b"SSH-":
        return "SSH"
    return None


class Client:
    """A cluster reached through its bootstrap servers; use it as a context manager."""

    def __init__(
        self,
        bootstrap: str = DEFAULT_BOOTSTRAP,
        access: Access = OPEN,
        timeout_s: float = PATIENCE_S,
    ) -> None:
        self._access = access
        self._timeout_s = timeout_s
        self._brokers: dict[int, HostPort] = {}
        self._connections: dict[HostPort, Connection] = {}
        self._any = self._bootstrap(parse_bootstrap(bootstrap))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def ask(self, request: Message, response: type[R], broker_id: int | None = None) -> R:
        """Ask one broker, or any if ``broker_id`` is None.

        Brokers close idle connections, so what may be asked twice is asked on a new one.
        """
        try:
            return self._connection(broker_id).ask(request, response)
        except Dropped:
            if request.__api_key__ in NOT_REPEATED:
                raise
        return self._connection(broker_id).ask(request, response)

    def tell(self, request: Message, broker_id: int) -> None:
        """Send one broker a request that it does not answer."""
        self._connection(broker_id).tell(request)

    def metadata(self, names: list[str] | None = None, *, create: bool = False) -> MetadataResponse:
        """The cluster and ``names`` (all if None); ``create`` lets the broker make topics."""
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        reply = self.ask(
            MetadataRequest(topics=topics, allow_auto_topic_creation=create), MetadataResponse
        )
        self._brokers = {item.node_id: HostPort(item.host, item.port) for item in reply.brokers}
        return reply

    def topic(self, name: str, *, create: bool = False) -> MetadataResponseTopic:
        """One topic whose partitions all have leaders; waits for them if the topic is new."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            (topic,) = self.metadata([name], create=create).topics
            codes = {topic.error_code, *(item.error_code for item in topic.partitions)}
            transient = set(NOT_YET)
            if create:
                transient.add(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            waiting = codes & transient
            if not waiting or time.monotonic() > deadline:
                check(f"topic {name}", next(iter(codes - {0}), 0))
                topic.partitions.sort(key=lambda item: item.partition_index)
                return topic
            time.sleep(RETRY_PAUSE_S)

    def coordinator(self, group_id: str) -> int:
        """Id of the broker that coordinates a group."""
        deadline = time.monotonic() + self._timeout_s
        request = FindCoordinatorRequest(key=group_id, key_type=0, coordinator_keys=[group_id])
        while True:
            reply = self.ask(request, FindCoordinatorResponse)
            found = reply.coordinators[0] if reply.coordinators else reply
            if found.error_code not in NOT_YET or time.monotonic() > deadline:
                check(f"coordinator of group {group_id}", found.error_code, found.error_message)
                self._brokers[found.node_id] = HostPort(found.host, found.port)
                return int(found.node_id)
            time.sleep(RETRY_PAUSE_S)

    def _connection(self, broker_id: int | None) -> Connection:
        address = self._any.address if broker_id is None else self._brokers[broker_id]
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = self._connect(address)
        return connection

    def _bootstrap(self, addresses: list[HostPort]) -> Connection:
        for address in addresses[:-1]:
            try:
                return self._connect(address)
            except (Unreachable, Refused):
                continue
        return self._connect(addresses[-1])

    def _connect(self, address: HostPort) -> Connection:
        connection = Connection(address, self._access, self._timeout_s)
        self._connections[address] = connection
        return connection


def parse_bootstrap(text: str) -> list[HostPort]:
    """``host:port,host:port`` as addresses; `UsageMistake` names the one at fault."""
    addresses = []
    for item in text.split(","):
        try:
            addresses.append(parse_host_port(item.strip()))
        except BadValueError as error:
            raise UsageMistake(
                f"--bootstrap-server {item}: {error}; write host:port, e.g. {DEFAULT_BOOTSTRAP}"
            ) from None
    return addresses

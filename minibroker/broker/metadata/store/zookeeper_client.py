"""kazoo's client with what the store needs: authentication, TLS, and watches of subtrees.

Owns everything that depends on kazoo's internals, in three places: a request that kazoo has no
method for, the reader of watch events, which would drop answers to it, and the time a server has to
confirm a session. It must never know what the
store does with either. Invariant: nothing here blocks, and a client that was created can read its
certificates. Kafka's ``ZooKeeperClient`` and ``ZKClientConfig``.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from kazoo import security
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Watch, int_struct, write_string

from minibroker.broker import settings as config
from minibroker.broker.metadata.store.tree import StoreError, StoreEvent, StoreEventKind
from minibroker.broker.security.handshakes import BadPem, Pem, client_context, explain_tls_failure
from minibroker.broker.settings import ConnectString, Settings

RECONNECT_FIRST_S: Final = 0.05
RECONNECT_MAX_S: Final = 1.0
"""The pause between two rounds of tries at all servers: it doubles from the first to the last."""

SESSION_RESPONSE_S: Final = 5.0
"""How long a server may take to confirm a session. One that is just starting can lose the request,
and kazoo would wait for the complete session timeout before it tries again."""

PRIVATE_PATHS: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens")
"""Nodes below these contain secrets; Kafka's ``ZkData.SensitiveRootPaths``."""

_LOG: Final = logging.getLogger("minibroker.zookeeper")  # below the root of our log lines

_KINDS: Final = {1: StoreEventKind.CREATED, 2: StoreEventKind.DELETED, 3: StoreEventKind.CHANGED}


class ZooKeeperAccess(NamedTuple):
    """Address and credentials of ZooKeeper; ``protect`` creates nodes that only we may change."""

    connect: ConnectString
    session_timeout_s: float
    patience_s: float
    digest: tuple[str, str] | None = None
    protect: bool = False
    tls: Pem | None = None


class ConnectionAttempts:
    """Connects a client to a server; ``tls_problem`` is the reason of a failed TLS handshake."""

    def __init__(self, handler: Any, context: ssl.SSLContext | None) -> None:
        """Replace the ``create_connection`` of kazoo's handler; use TLS if ``context`` is given."""
        self.tls_problem = ""
        self._context = context
        self._connect = handler.create_connection
        handler.create_connection = self._try

    def _try(self, *, hostname: str, **kwargs: Any) -> Any:
        # Kept until the next attempt has ended, because another thread may read it.
        problem = ""
        try:
            return self._secure(self._connect(hostname=hostname, **kwargs), hostname)
        except ssl.SSLError as error:
            problem = explain_tls_failure(error, "zookeeper.connect", "zookeeper.")
            raise
        finally:
            self.tls_problem = problem

    def _secure(self, plain: socket.socket, hostname: str) -> socket.socket:
        """Start TLS, or close the socket: kazoo would leave it open after a failed handshake."""
        if self._context is None:
            return plain
        try:
            return self._context.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise


def explain_unavailable(access: ZooKeeperAccess, attempts: ConnectionAttempts) -> str:
    """Return why no server is available, and what to check."""
    servers = ",".join(map(str, access.connect.servers))
    if attempts.tls_problem:
        return f"no secure connection to ZooKeeper at {servers}: {attempts.tls_problem}"
    text = f"no ZooKeeper answered at {servers} for {access.patience_s * 1000:g} ms"
    return f"{text}; check that it is running, and check zookeeper.connect"


def access_from(settings: Settings) -> ZooKeeperAccess | None:
    """Return the access that settings describe; None if the store is not on ZooKeeper."""
    connect = settings[config.ZOOKEEPER_CONNECT]
    if connect is None:
        return None
    session_ms = settings[config.ZOOKEEPER_SESSION_TIMEOUT_MS]
    user = settings[config.ZOOKEEPER_DIGEST_USERNAME]
    password = settings[config.ZOOKEEPER_DIGEST_PASSWORD]
    tls = None
    if settings[config.ZOOKEEPER_SSL_CLIENT_ENABLE]:
        tls = Pem(
            bool(settings[config.ZOOKEEPER_SSL_ENDPOINT_IDENTIFICATION_ALGORITHM]),
            truststore=settings[config.ZOOKEEPER_SSL_TRUSTSTORE_LOCATION],
            keystore=settings[config.ZOOKEEPER_SSL_KEYSTORE_LOCATION],
            key_password=settings[config.ZOOKEEPER_SSL_KEYSTORE_PASSWORD],
        )
    return ZooKeeperAccess(
        connect=connect,
        session_timeout_s=session_ms / 1000,
        patience_s=(settings[config.ZOOKEEPER_CONNECTION_TIMEOUT_MS] or session_ms) / 1000,
        digest=None if user is None or password is None else (user, password),
        protect=settings[config.ZOOKEEPER_SET_ACL],
        tls=tls,
    )


def make_client(
    access: ZooKeeperAccess, session: tuple[int, bytes] | None = None
) -> tuple[KazooClient, ConnectionAttempts]:
    """Create a client, not started yet, which continues ``session`` if one is given.

    Paths are whole ones: the chroot is the store's to add.  Raises `StoreError` for certificates
    that can't be read.
    """
    context = None if access.tls is None else _context_of(access.tls)
    client = KazooClient(
        hosts=",".join(map(str, access.connect.servers)),
        timeout=access.session_timeout_s,
        client_id=session,
        auth_data=[("digest", ":".join(access.digest))] if access.digest else None,
        connection_retry={
            "max_tries": -1,
            "delay": RECONNECT_FIRST_S,
            "max_delay": RECONNECT_MAX_S,
        },
        logger=_LOG,
    )
    _limit_session_response(client)
    return client, ConnectionAttempts(client.handler, context)


def _limit_session_response(client: KazooClient) -> None:
    connection = client._connection  # noqa: SLF001
    invoke = connection._invoke  # noqa: SLF001

    def invoke_limited(timeout: float, request: Any, xid: int | None = None) -> Any:
        return invoke(min(timeout, SESSION_RESPONSE_S), request, xid)

    connection._invoke = invoke_limited  # noqa: SLF001


def _context_of(tls: Pem) -> ssl.SSLContext:
    try:
        return client_context(tls, config.ZOOKEEPER_SSL_KEYSTORE_PASSWORD.name)
    except BadPem as error:
        file, name = tls.truststore, config.ZOOKEEPER_SSL_TRUSTSTORE_LOCATION.name
        if error.field == "keystore":
            file, name = tls.keystore, config.ZOOKEEPER_SSL_KEYSTORE_LOCATION.name
        raise StoreError(str(file), f"{name} {error}") from None


def acl_of(access: ZooKeeperAccess, path: str) -> list[Any]:
    """Return the ACL of a node to create: Kafka's ``ZkData.defaultAcls``."""
    acl: list[Any] = security.OPEN_ACL_UNSAFE
    if access.protect:
        private = any(path == top or path.startswith(f"{top}/") for top in PRIVATE_PATHS)
        acl = list(security.CREATOR_ALL_ACL)
        if not private:
            acl += security.READ_ACL_UNSAFE
    return acl


@dataclass(frozen=True, slots=True)
class AddWatch:
    """ZooKeeper's ``AddWatchRequest`` in mode 1: persistent, and of all that is below."""

    path: str
    type: ClassVar[int] = 106

    def serialize(self) -> bytes:
        """The request's body."""
        packed: bytes = write_string(self.path) + int_struct.pack(1)
        return packed

    @staticmethod
    def deserialize(_answer: bytes, _offset: int) -> bool:
        """Ignore the response, which has no content."""
        return True


def add_watch(client: KazooClient, path: str) -> Any:
    """Watch ``path`` and all nodes below it; return kazoo's async result."""
    result = client.handler.async_result()
    client._call(AddWatch(path), result)  # noqa: SLF001
    return result


def receive_watch_events(client: KazooClient, on_event: Callable[[StoreEvent], None]) -> None:
    """Call ``on_event``, in kazoo's thread, with every event that the server sends."""

    def read(buffer: bytes, offset: int) -> None:
        watched, _ = Watch.deserialize(buffer, offset)
        kind = _KINDS.get(watched.type)
        if kind is not None:
            on_event(StoreEvent(kind, watched.path))

    client._connection._read_watch_event = read  # noqa: SLF001

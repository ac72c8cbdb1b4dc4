"""kazoo's client with what the store needs: authentication, TLS, watches of subtrees, and errors.

Owns everything that depends on kazoo's internals, in three places: a request that kazoo has no
method for, the reader of watch events, which would drop answers to it, and the time a server has to
confirm a session; the table of errors; and the file with the session of the program's former
process, which is ended before a new one starts. It must never know what the store does with any of
them. Invariant: a client that was created can read its certificates; every error of a server
becomes a `StoreError` with its path, except for `CONNECTION_ERRORS`, whose outcome is unknown; only
the owner of a data directory uses the session's file in it. Kafka's ``ZooKeeperClient`` and
``ZKClientConfig``, and ZooKeeper's ``KeeperException.Code``.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from kazoo import exceptions as zk
from kazoo import security
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Watch, int_struct, write_string

from minibroker.broker import settings as config
from minibroker.broker.metadata.store.tree import (
    BadPathError,
    BadVersionError,
    Create,
    EphemeralParentError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    StoreError,
    StoreEvent,
    StoreEventKind,
    parent_of,
)
from minibroker.broker.security.handshakes import BadPem, Pem, client_context, explain_tls_failure
from minibroker.broker.settings import ConnectString, Settings

CONNECTION_ERRORS: Final = (
    zk.ConnectionLoss,
    zk.SessionExpiredError,  # kazoo's ConnectionClosedError is one too
    zk.SessionMovedError,
    zk.OperationTimeoutError,
)
"""The server may or may not have executed the operation."""

_ROLLED_BACK: Final = (zk.RolledBackError, zk.RuntimeInconsistency)
"""Results of operations in a failed transaction that did not cause the failure."""


def failed_operation_error(
    operations: Sequence[Operation], answers: Sequence[Any]
) -> StoreError | None:
    """Return the error of the operation that failed a transaction; None if it succeeded."""
    wrong = [
        (isinstance(answer, _ROLLED_BACK), number)
        for number, answer in enumerate(answers)
        if isinstance(answer, Exception)
    ]
    if not wrong:
        return None
    _, number = min(wrong)
    operation, error = operations[number], answers[number]
    path = operation.path
    if isinstance(operation, Create) and not isinstance(error, zk.NodeExistsError):
        path = parent_of(path)
    return to_store_error(error, path)


_ERRORS: Final[dict[type[Exception], tuple[type[StoreError], str]]] = {
    zk.NoNodeError: (NoNodeError, "does not exist"),
    zk.NodeExistsError: (NodeExistsError, "exists already"),
    zk.BadVersionError: (BadVersionError, "has another version"),
    zk.NotEmptyError: (NotEmptyError, "has children"),
    zk.NoChildrenForEphemeralsError: (
        EphemeralParentError,
        "is ephemeral and can have no children",
    ),
    zk.BadArgumentsError: (BadPathError, "is no path for ZooKeeper"),
    zk.NoAuthError: (
        StoreError,
        "ZooKeeper denied access; check zookeeper.digest.username and its password",
    ),
    zk.InvalidACLError: (
        StoreError,
        "this connection has no ZooKeeper identity, so zookeeper.set.acl can't protect it",
    ),
    zk.UnimplementedError: (StoreError, "this ZooKeeper is too old; 3.6 or newer is needed"),
}


def to_store_error(error: Exception, path: str) -> StoreError:
    """Convert the error of an operation on ``path``."""
    kind, text = _ERRORS.get(type(error), (StoreError, f"ZooKeeper answered {error!r}"))
    return kind(path, text)


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


Session: TypeAlias = tuple[int, bytes]
"""A session's number and its password."""


def save_session(file: Path, session: Session) -> None:
    """Write the file; only its owner can read it, because it gives access to the session."""
    number, password = session
    fresh = file.with_suffix(".part")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps({"session": number, "password": password.hex()}))
    os.replace(fresh, file)


def load_session(file: Path) -> Session | None:
    """Read the session in the file; None if it is missing or unreadable."""
    try:
        kept = json.loads(file.read_text())
        return int(kept["session"]), bytes.fromhex(kept["password"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def close_previous_session(access: ZooKeeperAccess, file: Path) -> None:
    """End the saved session and so its ephemeral nodes; blocks up to ``access.patience_s``.

    Without an answer nothing is lost: opening the new session reports the problem.
    """
    former = load_session(file)
    if former is None:
        return
    client, _ = make_client(access, former)
    with suppress(Exception):
        client.start(timeout=access.patience_s)
        client.stop()
        client.close()

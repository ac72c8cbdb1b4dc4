"""The store that several programs can share: ZooKeeper, through kazoo.

Owns the session, operations that wait while it is suspended, and the ephemeral nodes of this
broker. It must never know what nodes mean. Invariant: an answer is given once, even if the
connection was lost during the operation; the ephemeral nodes exist whenever there is a session, or
the store has failed and says so. A transaction is atomic: one node that only it can have written
proves that it was executed, and one without any effect may be sent again. Kafka's
``KafkaZkClient``.

kazoo keeps the connection in its own threads. They only enqueue calls into trio's loop, which has
all state; all calls to kazoo enqueue a request and return. Time is the machine's, not the broker's
clock, which an external server does not follow. Suspended is not lost: while kazoo reconnects,
operations wait, for at most ``ZooKeeperAccess.patience_s`` since the connection was lost, and then
fail until it is restored. Watches are lost in both cases, because they belong to a connection:
readers get `EventsLostError`.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import trio
from kazoo import exceptions as zk
from kazoo import security
from kazoo.client import KazooClient, KazooState
from kazoo.protocol.serialization import Watch, int_struct, write_string
from kazoo.protocol.states import KeeperState

from minibroker.broker import settings as config
from minibroker.broker.metadata.store.tree import (
    BadPathError,
    BadVersionError,
    Check,
    Create,
    Delete,
    EphemeralParentError,
    EventsLostError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Result,
    Set,
    Store,
    StoreError,
    StoreEvent,
    StoreEventKind,
    StoreNode,
    TooLargeError,
    UnavailableError,
    check_data,
    check_path,
    parent_of,
)
from minibroker.broker.metadata.store.watches import Watches
from minibroker.broker.security.handshakes import BadPem, Pem, client_context, explain_tls_failure
from minibroker.broker.settings import ConnectString, Settings

# ------------- kazoo's client with authentication, TLS, watches of subtrees, and errors of our own
# Owns everything that depends on kazoo's internals, in three places: a request that kazoo has no
# method for, the reader of watch events, which would drop answers to it, and the time a server has
# to confirm a session; the table of errors; and the file with the session of the program's former
# process, which is ended before a new one starts. It must never know what the store does with any
# of them. Invariant: a client that was created can read its certificates; every error of a server
# becomes a `StoreError` with its path, except for `CONNECTION_ERRORS`, whose outcome is unknown;
# only the owner of a data directory uses the session's file in it. Kafka's ``ZooKeeperClient`` and
# ``ZKClientConfig``, and ZooKeeper's ``KeeperException.Code``.


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


REQUEST_MAX_BYTES: Final = 0xFFFFF
"""Largest request of a server (jute.maxbuffer); it disconnects on a larger one."""

OPERATION_BYTES: Final = 100
"""Maximal size of an operation in a request, without path and data."""


class ZooKeeperStore(Store):
    """A `Store` in ZooKeeper; create it with `open`."""

    def __init__(self, access: ZooKeeperAccess, session_file: Path | None) -> None:
        self._access = access
        self._session_file = session_file
        self._token = trio.lowlevel.current_trio_token()
        self._client, self._attempts = make_client(access)
        self._watches = Watches()
        self._waiting: set[trio.Event] = set()
        self._own: dict[str, _Ephemeral] = {}
        self._session = 0
        self._newest = 0
        """The latest transaction that an answer reported."""
        self._up = False
        self._failure: StoreError | None = None
        """Why operations fail; cleared when the connection returns, unless it is final."""
        self._final = False
        self._closed = False
        self._changed = trio.Event()
        self._patience: threading.Timer | None = None
        receive_watch_events(self._client, lambda event: self._soon(self._heard, event))
        self._client.add_listener(
            lambda state: self._soon(self._on_state, state, self._client.client_state)
        )

    @classmethod
    async def open(
        cls, access: ZooKeeperAccess, session_file: Path | None = None
    ) -> ZooKeeperStore:
        """Connect, and create the chroot if it does not exist.

        ``session_file`` keeps the session for the next start of the program, which ends it first,
        so that the ephemeral nodes of a killed process are not in the way. Raises `StoreError` if
        no server answers within ``access.patience_s``.
        """
        if session_file is not None:
            await trio.to_thread.run_sync(
                close_previous_session, access, session_file, abandon_on_cancel=True
            )
        store = cls(access, session_file)
        store._lose_patience_later()
        store._client.start_async()
        try:
            chroot, made = access.connect.chroot, ""
            await store._available(chroot or "/")
            for part in chroot.split("/")[1:]:
                made += f"/{part}"
                await store._make_above(made)
        except BaseException:
            with trio.CancelScope(shield=True):
                await store.close()
            raise
        return store

    async def get(self, path: str) -> StoreNode:
        check_path(path)
        data, stat = await self._read(path, lambda: self._client.get_async(self._full(path)))
        return StoreNode(data or b"", stat.version)

    async def exists(self, path: str) -> bool:
        check_path(path)
        stat = await self._read(path, lambda: self._client.exists_async(self._full(path)))
        return stat is not None

    async def children(self, path: str) -> list[str]:
        check_path(path)
        get = self._client.get_children_async
        return sorted(await self._read(path, lambda: get(self._full(path))))

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        size = sum(_check(operation) for operation in operations)
        if not operations:
            await trio.lowlevel.checkpoint()
            return []
        first = operations[0].path
        if size > REQUEST_MAX_BYTES:
            raise TooLargeError(first, f"a transaction of {size} bytes is too large for ZooKeeper")
        since: int | None = None  # set when an answer was lost
        while True:
            await self._available(first)
            if since is not None and (found := await self._find(operations, since)) is not None:
                return self._done(operations, found)
            before = self._newest
            try:
                answers = await self._ask(lambda: self._commit(operations))
            except CONNECTION_ERRORS:
                since = before if since is None else since
                continue
            except zk.KazooException as error:
                raise to_store_error(error, first) from None
            failed = failed_operation_error(operations, answers)
            if failed is None:
                return self._done(operations, [self._result(answer) for answer in answers])
            if since is not None and (found := await self._find(operations, since)) is not None:
                return self._done(operations, found)  # the first attempt was still on its way
            raise failed

    @contextmanager
    def watch(self, path: str) -> Iterator[AsyncIterator[StoreEvent]]:
        check_path(path)
        with self._watches.open(path) as watch:

            def added(answer: Any) -> None:
                if isinstance(answer.exception, CONNECTION_ERRORS):
                    watch.end(_lost())
                elif answer.exception is not None:
                    watch.end(to_store_error(answer.exception, path))

            if self._reachable:
                # Requests are executed in order, so later ones see this watch.
                add_watch(self._client, self._full(path)).rawlink(
                    lambda answer: self._soon(added, answer)
                )
            elif self._final:
                watch.end(self._failure)
            # Otherwise it gets the error when the connection is restored, as all watches do.
            yield watch

    async def close(self) -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        self._watches.end()
        self._fail(StoreError("/", "the config store is closed"), final=True)
        await trio.to_thread.run_sync(self._hang_up)

    def _hang_up(self) -> None:
        with suppress(zk.KazooException):
            self._client.stop()
            self._client.close()
        if self._session_file is not None:
            self._session_file.unlink(missing_ok=True)

    # The connection -------------------------------------------------------------------------------

    def _soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Schedule a call in trio's loop; kazoo's threads do nothing else here."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function, *arguments)

    def _on_state(self, state: str, cause: str) -> None:
        if self._final:
            return
        self._up = False
        if state == KazooState.CONNECTED:
            self._connected()
        elif cause == KeeperState.AUTH_FAILED:
            text = "ZooKeeper refused zookeeper.digest.username and zookeeper.digest.password"
            self._fail(StoreError("/", text), final=True)
        elif cause == KeeperState.CLOSED:
            self._fail(StoreError("/", "the connection to ZooKeeper broke for good"), final=True)
        elif self._patience is None:
            self._lose_patience_later()
        self._wake()

    def _connected(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        client_id = self._client.client_id
        if client_id is None:
            return  # gone again; the next state says so
        again = self._session != 0
        self._session = client_id[0]
        self._failure = None
        self._up = True
        if self._session_file is not None:
            save_session(self._session_file, client_id)
        for path, own in self._own.items():
            if own.session != self._session:
                self._recreate(path, own)  # before any waiting operation is sent
        if again:
            self._watches.end(_lost())

    def _lose_patience_later(self) -> None:
        def lose() -> None:
            if not self._up:
                text = explain_unavailable(self._access, self._attempts)
                self._fail(StoreError("/", text), final=False)

        self._patience = threading.Timer(self._access.patience_s, self._soon, [lose])
        self._patience.daemon = True
        self._patience.start()

    def _fail(self, error: StoreError, *, final: bool) -> None:
        if self._final:
            return
        self._failure, self._final = error, final
        if final:
            self._watches.end(error)
            if self._patience is not None:
                self._patience.cancel()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        if self._final:
            for event in self._waiting:
                event.set()

    @property
    def _reachable(self) -> bool:
        return self._up and not self._final and self._client.connected

    async def _available(self, path: str) -> None:
        """Returns when there is a connection; raises `StoreError` when that takes too long."""
        await trio.lowlevel.checkpoint()
        while not self._reachable:
            if self._failure is not None:
                if self._final:
                    raise StoreError(self._failure.path, self._failure.text)
                raise UnavailableError(path, self._failure.text)
            await self._changed.wait()

    async def _ask(self, send: Callable[[], Any]) -> Any:
        """Return the response to one request. Raises kazoo's errors."""
        event = trio.Event()
        answer = send()
        answer.rawlink(lambda _: self._soon(event.set))
        self._waiting.add(event)
        try:
            await event.wait()
        finally:
            self._waiting.discard(event)
        if not answer.ready():
            raise zk.ConnectionClosedError  # the store was closed, and its threads are gone
        self._newest = max(self._newest, self._client.last_zxid)
        return answer.get_nowait()

    async def _read(self, path: str, send: Callable[[], Any]) -> Any:
        while True:
            await self._available(path)
            try:
                return await self._ask(send)
            except CONNECTION_ERRORS:
                continue
            except zk.KazooException as error:
                raise to_store_error(error, path) from None

    # Transactions ---------------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        """The whole path, chroot included."""
        chroot = self._access.connect.chroot
        return (chroot or "/") if path == "/" else chroot + path

    def _within(self, full: str) -> str | None:
        chroot = self._access.connect.chroot
        if full == chroot:
            return "/"
        return full.removeprefix(chroot) if full.startswith(f"{chroot}/") else None

    def _heard(self, event: StoreEvent) -> None:
        path = self._within(event.path)
        if path is not None:
            self._watches.notify(event._replace(path=path))

    def _commit(self, operations: Sequence[Operation]) -> Any:
        transaction = self._client.transaction()
        for operation in operations:
            path = self._full(operation.path)
            match operation:
                case Create(_, data, ephemeral, sequential):
                    acl = acl_of(self._access, operation.path)
                    transaction.create(path, data, acl, ephemeral, sequential)
                case Set(_, data, version):
                    transaction.set_data(path, data, version)
                case Delete(_, version):
                    transaction.delete(path, version)
                case Check(_, version):
                    transaction.check(path, version)
        return transaction.commit_async()

    async def _make_above(self, full: str) -> None:
        """Create a node above the chroot, given its complete path."""
        with suppress(NodeExistsError):
            await self._read(full, lambda: self._client.create_async(full, b""))

    async def _find(self, operations: Sequence[Operation], since: int) -> list[Result] | None:
        tree = Tree(self._look, self.children)
        return await find_outcome(operations, tree, since=since, session=self._session)

    async def _look(self, path: str) -> FoundNode | None:
        try:
            data, stat = await self._read(path, lambda: self._client.get_async(self._full(path)))
        except NoNodeError:
            return None
        return FoundNode(data or b"", stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)

    def _result(self, answer: Any) -> Result:
        if isinstance(answer, str):
            return self._within(answer)
        return getattr(answer, "version", None)

    def _done(self, operations: Sequence[Operation], results: list[Result]) -> list[Result]:
        """Note which ephemeral nodes are ours now."""
        for operation, result in zip(operations, results, strict=True):
            if isinstance(operation, Create) and operation.ephemeral:
                self._own[str(result)] = _Ephemeral(operation.data, self._session)
            elif isinstance(operation, Set) and operation.path in self._own:
                self._own[operation.path].data = operation.data
            elif isinstance(operation, Delete):
                self._own.pop(operation.path, None)
        return results

    # Ephemeral nodes after a session was lost -----------------------------------------------------

    def _recreate(self, path: str, own: _Ephemeral) -> None:
        session = self._session
        acl = acl_of(self._access, path)
        answer = self._client.create_async(self._full(path), own.data, acl, ephemeral=True)

        def looked_at(answer: Any) -> None:
            if answer.exception is None and answer.value is not None:
                if answer.value.ephemeralOwner == session:
                    own.session = session
                else:
                    text = "was ours until the session was lost, and now belongs to another session"
                    self._fail(StoreError(path, text), final=True)

        def made(answer: Any) -> None:
            error = answer.exception
            if error is None:
                own.session = session
            elif isinstance(error, zk.NodeExistsError):
                look = self._client.exists_async(self._full(path))
                look.rawlink(lambda answer: self._soon(looked_at, answer))
            elif not isinstance(error, CONNECTION_ERRORS):  # else the next connection tries again
                self._fail(to_store_error(error, path), final=True)

        answer.rawlink(lambda answer: self._soon(made, answer))


class _Ephemeral:
    """One of our nodes, and the session in which it was last known to exist."""

    __slots__ = ("data", "session")

    def __init__(self, data: bytes, session: int) -> None:
        self.data = data
        self.session = session


def _check(operation: Operation) -> int:
    """Return the size of an operation. Raises an error if no server accepts it."""
    path = operation.path
    check_path(path)
    if path == "/" and isinstance(operation, Create | Delete):
        raise BadPathError(path, "the root exists always")
    data = operation.data if isinstance(operation, Create | Set) else b""
    check_data(path, data)
    return len(path.encode()) + len(data) + OPERATION_BYTES


def _lost() -> EventsLostError:
    return EventsLostError("the connection to ZooKeeper was lost; read the tree again")


class FoundNode(NamedTuple):
    """A node, with the numbers of the transactions that created it and last set its data.

    ``owner`` is the session that an ephemeral node belongs to, 0 for others.
    """

    data: bytes
    version: int
    created_by: int
    set_by: int
    owner: int


class Tree(NamedTuple):
    """Reads one node (None if it does not exist), and the names of its children."""

    look: Callable[[str], Awaitable[FoundNode | None]]
    children: Callable[[str], Awaitable[list[str]]]


async def find_outcome(
    operations: Sequence[Operation], tree: Tree, *, since: int, session: int
) -> list[Result] | None:
    """The results of operations sent when ``since`` was the newest transaction known; None if
    they were not done.

    ``session`` is ours now: ephemeral nodes of an earlier one are about to go.
    """
    results: list[Result] = []
    proven = False
    gone = True
    for number, operation in enumerate(operations):
        match operation:
            case Create(path, data, ephemeral, True):
                name = await _numbered(path, data, tree, since, session if ephemeral else 0)
                proven |= name is not None
                gone = False
                results.append(name or path)
            case Create(path, data, ephemeral):
                node = await tree.look(path)
                proven |= (
                    node is not None
                    and node.created_by > since
                    and (node.data == data or _sets_after(operations, number) > 0)
                    and node.owner == (session if ephemeral else 0)
                )
                gone &= node is None and _deletes_after(operations, number)
                results.append(path)
            case Set(path, data):
                node, later = await tree.look(path), _sets_after(operations, number)
                if node is not None:
                    proven |= node.set_by > since and (node.data == data or later > 0)
                gone &= node is None and _deletes_after(operations, number)
                results.append(0 if node is None else node.version - later)
            case Delete(path):
                node = await tree.look(path)
                gone &= node is None or node.created_by > since
                results.append(None)
            case Check():
                results.append(None)
    only_checks = all(isinstance(operation, Check) for operation in operations)
    return results if (proven or gone) and not only_checks else None


def _sets_after(operations: Sequence[Operation], number: int) -> int:
    path = operations[number].path
    return sum(isinstance(op, Set) and op.path == path for op in operations[number + 1 :])


def _deletes_after(operations: Sequence[Operation], number: int) -> bool:
    path = operations[number].path
    return any(isinstance(op, Delete) and op.path == path for op in operations[number + 1 :])


async def _numbered(path: str, data: bytes, tree: Tree, since: int, owner: int) -> str | None:
    """Find the sequential node that only this operation can have created."""
    parent, _, start = path.rpartition("/")
    for name in await tree.children(parent_of(path)):
        if name.startswith(start) and name.removeprefix(start).isdigit():
            node = await tree.look(f"{parent}/{name}")
            ours = node is not None and (node.data, node.owner) == (data, owner)
            if node is not None and ours and node.created_by > since:
                return f"{parent}/{name}"
    return None

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

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio
from kazoo import exceptions as zk
from kazoo.client import KazooState
from kazoo.protocol.states import KeeperState

from minibroker.broker.metadata.store.tree import (
    BadPathError,
    Check,
    Create,
    Delete,
    EventsLostError,
    NodeExistsError,
    NoNodeError,
    Operation,
    Result,
    Set,
    Store,
    StoreError,
    StoreEvent,
    StoreNode,
    TooLargeError,
    UnavailableError,
    check_data,
    check_path,
    parent_of,
)
from minibroker.broker.metadata.store.watches import Watches
from minibroker.broker.metadata.store.zookeeper_client import (
    CONNECTION_ERRORS,
    ZooKeeperAccess,
    acl_of,
    add_watch,
    close_previous_session,
    explain_unavailable,
    failed_operation_error,
    make_client,
    receive_watch_events,
    save_session,
    to_store_error,
)

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

"""The store over a connection that is cut, a session that ends, a server that is away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from minibroker.broker.metadata.store.tree import (
    Create,
    EventsLostError,
    Set,
    Store,
    StoreError,
    StoreEvent,
    StoreEventKind,
    StoreNode,
    UnavailableError,
)
from minibroker.broker.metadata.store.zookeeper import ZooKeeperStore
from system_tests.harness.waiting import PATIENCE_S, wait_until
from system_tests.harness.zookeeper import ZooKeeper, addresses, start_ensemble
from system_tests.zookeeper.conftest import access

pytestmark = pytest.mark.minibroker

POLL_INTERVAL = "read the tree again"


def end_session_of(store: ZooKeeperStore, server: ZooKeeper) -> None:
    """Have the server end a store's session, as it does when a client was silent for too long."""
    twin = KazooClient(server.address, client_id=store._client.client_id)
    twin.start()
    twin.stop()
    twin.close()


async def lose_session(store: ZooKeeperStore, server: ZooKeeper) -> None:
    """Returns when the store has another session: the twin breaks the connection twice."""
    session = store._session
    await trio.to_thread.run_sync(end_session_of, store, server)
    renewed = partial(wait_until, lambda: store._up and store._session != session, "a new session")
    await trio.to_thread.run_sync(renewed)


async def read_to_the_end(events: AsyncIterator[StoreEvent]) -> None:
    async for _ in events:
        pass


async def wait_for_loss(events: AsyncIterator[StoreEvent]) -> None:
    with pytest.raises(EventsLostError, match=POLL_INTERVAL):
        await read_to_the_end(events)


async def test_while_the_server_is_down_operations_wait_and_are_then_done(
    own_server: ZooKeeper,
) -> None:
    # A server that is just starting may accept a connection and lose the session's request. The
    # client waits 5 s for the response and tries again, and the session must last until then.
    store = await ZooKeeperStore.open(access(f"{own_server.address}/x", session_s=20))
    await store.create("/e", b"mine", ephemeral=True)
    session = store._session
    results: list[object] = []

    async def ask() -> None:
        results.append(await store.create("/a", b"one"))
        results.append(await store.get("/a"))

    with store.watch("/") as events:
        async with trio.open_nursery() as nursery:
            own_server.kill()
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert results == []
            await trio.to_thread.run_sync(own_server.start)
        assert results == ["/a", StoreNode(b"one", 0)]
        await wait_for_loss(events)
    assert store._session == session  # suspended is not lost
    assert await store.exists("/e")
    with store.watch("/") as events:
        await store.set("/a", b"two")
        assert await anext(events) == StoreEvent(StoreEventKind.CHANGED, "/a")
    await store.close()


async def test_silent_server_is_detected_and_pending_write_applied_once(
    own_server: ZooKeeper,
) -> None:
    store = await ZooKeeperStore.open(access(f"{own_server.address}/x", session_s=1))
    await store.create("/e", ephemeral=True)
    await store.create("/q")
    with store.watch("/") as events:
        async with trio.open_nursery() as nursery:
            own_server.freeze()
            nursery.start_soon(store.create, "/q/one")
            lost = partial(
                wait_until, lambda: not store._client.connected, "the silence to be noticed"
            )
            await trio.to_thread.run_sync(lost)
            own_server.freeze(False)
        await wait_for_loss(events)
    assert await store.children("/q") == ["one"]
    assert await store.exists("/e")
    await store.close()


async def test_waiting_is_bounded_and_a_later_return_is_noticed(own_server: ZooKeeper) -> None:
    store = await ZooKeeperStore.open(access(f"{own_server.address}/x", patience_s=1))
    own_server.kill()
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"no ZooKeeper answered at .* for 1000 ms"):
            await store.create("/a")
    with store.watch("/") as events:
        await trio.to_thread.run_sync(own_server.start)
        await wait_for_loss(events)
    await store.create("/a")
    await store.close()


async def test_lost_session_brings_its_ephemeral_nodes_back_before_anything_else(
    zookeeper_server: ZooKeeper, tmp_path: Path
) -> None:
    connect = f"{zookeeper_server.address}/{tmp_path.name}"
    store = await ZooKeeperStore.open(access(connect))
    other = await ZooKeeperStore.open(access(connect))
    await store.multi([Create("/e", b"one", True), Create("/gone", b"", True), Set("/e", b"two")])
    await store.delete("/gone")
    numbered = await store.create("/n-", b"x", ephemeral=True, sequential=True)
    session = store._session
    with store.watch("/e") as events, other.watch("/e") as seen:
        await lose_session(store, zookeeper_server)
        await wait_for_loss(events)
        assert await anext(seen) == StoreEvent(StoreEventKind.DELETED, "/e")
        assert await anext(seen) == StoreEvent(StoreEventKind.CREATED, "/e")
    assert store._session != session
    assert (await store.get("/e")).data == b"two"
    assert (await store.get(numbered)).data == b"x"
    assert not await store.exists("/gone")
    await store.close()
    assert await other.children("/") == []
    await other.close()


async def test_ephemeral_node_taken_by_another_session_fails_store(
    zookeeper_server: ZooKeeper, tmp_path: Path
) -> None:
    connect = f"{zookeeper_server.address}/{tmp_path.name}"
    store = await ZooKeeperStore.open(access(connect))
    rival = await ZooKeeperStore.open(access(connect))
    await store.create("/e", b"mine", ephemeral=True)
    with store.watch("/e") as events, rival.watch("/e") as seen:
        # Take the node in the moment between two sessions: the store's return is held up.
        make_again = store._recreate
        store._recreate = lambda path, own: None  # type: ignore[method-assign]
        await lose_session(store, zookeeper_server)
        assert await anext(seen) == StoreEvent(StoreEventKind.DELETED, "/e")
        await rival.create("/e", b"theirs", ephemeral=True)
        await wait_for_loss(events)
        store._recreate = make_again  # type: ignore[method-assign]
    with store.watch("/e") as events:
        make_again("/e", store._own["/e"])
        with pytest.raises(StoreError, match="now belongs to another session"):
            await read_to_the_end(events)
    with pytest.raises(StoreError, match="now belongs to another session"):
        await store.get("/e")
    await store.close()
    assert (await rival.get("/e")).data == b"theirs"
    await rival.close()


async def test_next_life_ends_the_session_of_one_that_was_killed(
    zookeeper_server: ZooKeeper, tmp_path: Path
) -> None:
    connect, file = f"{zookeeper_server.address}/{tmp_path.name}", tmp_path / "session"
    killed = await ZooKeeperStore.open(access(connect, session_s=30), file)
    await killed.create("/e", ephemeral=True)
    kept = file.read_bytes()
    await killed.close()
    assert not file.exists()
    killed = await ZooKeeperStore.open(access(connect, session_s=30), file)
    await killed.create("/e", ephemeral=True)
    assert file.read_bytes() != kept
    killed._own.clear()  # the dead make nothing again
    store = await ZooKeeperStore.open(access(connect, session_s=30), file)
    assert await store.children("/") == []
    await store.close()
    await killed.close()


@pytest.mark.parametrize("after_it_was_done", [False, True])
async def test_multi_with_lost_response_is_applied_once(
    zookeeper_server: ZooKeeper, tmp_path: Path, after_it_was_done: bool
) -> None:
    connect = f"{zookeeper_server.address}/{tmp_path.name}"
    store = await ZooKeeperStore.open(access(connect))
    await store.create("/q")
    await store.create("/v", b"0")
    lose_one_answer(store, done=after_it_was_done)
    results = await store.multi(
        [
            Create("/q/n-", b"x", sequential=True),
            Create("/e", b"y", ephemeral=True),
            Set("/v", b"1", version=0),
        ]
    )
    assert results == ["/q/n-0000000000", "/e", 1]
    assert await store.children("/q") == ["n-0000000000"]
    assert await store.get("/v") == StoreNode(b"1", 1)
    assert "/e" in store._own
    await store.close()


def lose_one_answer(store: ZooKeeperStore, *, done: bool) -> None:
    """Cut the connection over the next transaction: after it was done, or before it was sent."""
    commit = store._commit

    def cut(operations: object) -> object:
        store._commit = commit  # type: ignore[method-assign]
        connection = store._client._connection
        if done:
            commit(operations).get(timeout=PATIENCE_S)  # type: ignore[arg-type]
        connection._socket.shutdown(2)
        answer = store._client.handler.async_result()
        answer.set_exception(ConnectionLoss())
        return answer

    store._commit = cut  # type: ignore[method-assign]


@pytest.mark.slow
async def test_ensemble_continues_after_leader_kill(zookeeper_libs: Path, tmp_path: Path) -> None:
    servers = await trio.to_thread.run_sync(start_ensemble, tmp_path / "ensemble")
    try:
        store: Store = await ZooKeeperStore.open(access(f"{addresses(servers)}/x"))
        await store.create("/e", b"mine", ephemeral=True)
        await store.create("/counter", b"0")
        [leader] = [server for server in servers if server.mode() == "leader"]
        for number in range(1, 200):
            if number == 50:
                leader.kill()
            version = await store.set("/counter", str(number).encode(), version=number - 1)
            assert version == number
        assert await store.get("/counter") == StoreNode(b"199", 199)
        assert await store.exists("/e")
        await store.close()
    finally:
        for server in servers:
            server.kill()

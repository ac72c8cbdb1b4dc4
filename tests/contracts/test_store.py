"""The contract of config stores.

A store is added by a maker in `MAKERS`: an async function from an empty directory to an open store.
Opening the same directory twice results in the same tree; a store that keeps nothing is listed in
`FORGETFUL`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import (
    NODE_MAX_BYTES,
    WATCH_MAX_EVENTS,
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
    Set,
    Store,
    StoreError,
    StoreEvent,
    StoreEventKind,
    StoreNode,
    TooLargeError,
)

Maker = Callable[[Path], Awaitable[Store]]


async def _sqlite_file(directory: Path) -> Store:
    return SqliteStore(directory / "store.sqlite")


async def _sqlite_memory(directory: Path) -> Store:
    return SqliteStore(MEMORY)


MAKERS: dict[str, Maker] = {"sqlite": _sqlite_file, "sqlite-memory": _sqlite_memory}
FORGETFUL = {"sqlite-memory"}


@pytest.fixture(params=MAKERS)
def maker(request: pytest.FixtureRequest) -> Maker:
    return MAKERS[request.param]


@pytest.fixture(params=[name for name in MAKERS if name not in FORGETFUL])
def lasting_maker(request: pytest.FixtureRequest) -> Maker:
    return MAKERS[request.param]


@pytest.fixture
async def store(maker: Maker, tmp_path: Path) -> AsyncIterator[Store]:
    made = await maker(tmp_path)
    yield made
    await made.close()


async def test_created_node_has_version_0(store: Store) -> None:
    assert await store.create("/a", b"one") == "/a"
    assert await store.get("/a") == StoreNode(b"one", 0)
    assert await store.exists("/a")


async def test_missing_node_raises_no_node_error(store: Store) -> None:
    assert not await store.exists("/a")
    with pytest.raises(NoNodeError, match="/a: does not exist"):
        await store.get("/a")
    with pytest.raises(NoNodeError):
        await store.children("/a")
    with pytest.raises(NoNodeError):
        await store.set("/a", b"")
    with pytest.raises(NoNodeError):
        await store.delete("/a")


async def test_create_without_parent_raises_no_node_error(store: Store) -> None:
    with pytest.raises(NoNodeError):
        await store.create("/a/b")


async def test_create_of_existing_node_raises_node_exists_error(store: Store) -> None:
    await store.create("/a", b"one")
    with pytest.raises(NodeExistsError):
        await store.create("/a", b"two")
    assert (await store.get("/a")).data == b"one"


async def test_set_increments_version_and_stale_version_is_rejected(store: Store) -> None:
    await store.create("/a")
    assert await store.set("/a", b"one") == 1
    assert await store.set("/a", b"two", version=1) == 2
    with pytest.raises(BadVersionError):
        await store.set("/a", b"three", version=1)
    assert await store.get("/a") == StoreNode(b"two", 2)
    with pytest.raises(BadVersionError):
        await store.delete("/a", version=1)
    await store.delete("/a", version=2)
    await store.create("/a")
    assert (await store.get("/a")).version == 0


async def test_children_are_direct_and_sorted_and_keep_parent_version(store: Store) -> None:
    for path in ("/a", "/a/c", "/a/b", "/a/b/d", "/ab"):
        await store.create(path)
    assert await store.children("/a") == ["b", "c"]
    assert await store.children("/a/c") == []
    assert (await store.get("/a")).version == 0
    assert {"a", "ab"} <= set(await store.children("/"))


async def test_delete_of_node_with_children_is_rejected(store: Store) -> None:
    await store.create("/a")
    await store.create("/a/b")
    with pytest.raises(NotEmptyError):
        await store.delete("/a")
    await store.delete("/a/b")
    await store.delete("/a")
    assert not await store.exists("/a")


async def test_sequential_nodes_have_ten_digits_and_are_never_reused(store: Store) -> None:
    await store.create("/q")
    first = await store.create("/q/n-", sequential=True)
    second = await store.create("/q/n-", sequential=True)
    await store.delete(second)
    third = await store.create("/q/n-", sequential=True)
    numbers = [path.removeprefix("/q/n-") for path in (first, second, third)]
    assert all(len(number) == 10 for number in numbers)
    assert numbers == sorted(set(numbers))


async def test_child_of_ephemeral_node_is_rejected(store: Store) -> None:
    await store.create("/e", ephemeral=True)
    with pytest.raises(EphemeralParentError):
        await store.create("/e/child")


async def test_multi_applies_all_operations(store: Store) -> None:
    results = await store.multi([
        Create("/a", b"x"),
        Create("/a/n-", sequential=True),
        Set("/a", b"y", version=0),
        Check("/a", version=1),
        Create("/b"),
        Delete("/b"),
    ])  # fmt: skip
    assert results == ["/a", "/a/n-0000000000", 1, None, "/b", None]
    assert await store.get("/a") == StoreNode(b"y", 1)
    assert not await store.exists("/b")


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (Create("/a"), NodeExistsError),
        (Create("/x/y"), NoNodeError),
        (Set("/a", b"", version=9), BadVersionError),
        (Check("/a", version=9), BadVersionError),
        (Check("/x"), NoNodeError),
        (Delete("/p"), NotEmptyError),
    ],
)
async def test_failed_multi_applies_no_operation(
    store: Store, last: Operation, error: type[StoreError]
) -> None:
    await store.multi([Create("/a", b"one"), Create("/p"), Create("/p/q")])
    with pytest.raises(error) as caught:
        await store.multi([Set("/a", b"two"), Create("/new"), Delete("/p/q"), Create("/p/r"), last])
    assert caught.value.path == last.path or isinstance(caught.value, NoNodeError)
    assert await store.get("/a") == StoreNode(b"one", 0)
    assert not await store.exists("/new")
    assert await store.children("/p") == ["q"]
    await store.create("/new")


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/a/../b", "/.", "/a\0"])
async def test_invalid_path_is_rejected(store: Store, path: str) -> None:
    with pytest.raises(BadPathError):
        await store.create(path)
    with pytest.raises(BadPathError):
        await store.get(path)


async def test_root_exists_and_cannot_be_created_or_deleted(store: Store) -> None:
    assert await store.exists("/")
    with pytest.raises(BadPathError):
        await store.delete("/")
    with pytest.raises(BadPathError):
        await store.create("/")


async def test_too_large_node_data_is_rejected(store: Store) -> None:
    await store.create("/a", bytes(NODE_MAX_BYTES))
    with pytest.raises(TooLargeError):
        await store.set("/a", bytes(NODE_MAX_BYTES + 1))
    with pytest.raises(TooLargeError):
        await store.create("/b", bytes(NODE_MAX_BYTES + 1))


async def test_ensure_creates_missing_nodes(store: Store) -> None:
    await store.create("/a", b"kept")
    await store.ensure("/a/b/c")
    await store.ensure("/a/b/c")
    await store.ensure("/")
    assert (await store.get("/a")).data == b"kept"
    assert await store.exists("/a/b/c")


async def test_watch_delivers_events_of_node_and_descendants_in_order(store: Store) -> None:
    await store.create("/w")
    with store.watch("/w") as events:
        await store.create("/other")
        await store.create("/w/a")
        await store.create("/w/a/b")
        await store.set("/w/a", b"x")
        await store.create("/ww")
        await store.delete("/w/a/b")
        await store.set("/w", b"y")
        seen = [await anext(events) for _ in range(5)]
    assert seen == [
        StoreEvent(StoreEventKind.CREATED, "/w/a"),
        StoreEvent(StoreEventKind.CREATED, "/w/a/b"),
        StoreEvent(StoreEventKind.CHANGED, "/w/a"),
        StoreEvent(StoreEventKind.DELETED, "/w/a/b"),
        StoreEvent(StoreEventKind.CHANGED, "/w"),
    ]


async def test_watch_of_missing_node_delivers_its_creation(store: Store) -> None:
    with store.watch("/later") as events:
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                assert await anext(events) == StoreEvent(StoreEventKind.CREATED, "/later")
                assert (await store.get("/later")).data == b"x"

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            await store.create("/later", b"x")


async def test_failed_multi_delivers_no_watch_event(store: Store) -> None:
    with store.watch("/") as events:
        with pytest.raises(NoNodeError):
            await store.multi([Create("/a"), Create("/x/y")])
        await store.create("/b")
        assert await anext(events) == StoreEvent(StoreEventKind.CREATED, "/b")


async def test_watch_that_is_not_read_raises_events_lost_error(store: Store) -> None:
    await store.create("/a")
    with store.watch("/a") as events:
        for start in range(0, WATCH_MAX_EVENTS + 500, 500):
            await store.multi([Set("/a", str(start).encode())] * 500)
        for _ in range(WATCH_MAX_EVENTS):
            await anext(events)
        with pytest.raises(EventsLostError, match="4096 events waited at /a"):
            await anext(events)


async def test_closing_store_ends_its_watches(maker: Maker, tmp_path: Path) -> None:
    store = await maker(tmp_path)
    with store.watch("/") as events:
        await store.close()
        assert [event async for event in events] == []


async def test_reopened_store_keeps_nodes_except_ephemeral_ones(
    lasting_maker: Maker, tmp_path: Path
) -> None:
    first = await lasting_maker(tmp_path)
    await first.create("/a", b"one")
    await first.set("/a", b"two")
    await first.create("/a/n-", sequential=True)
    await first.create("/e", ephemeral=True)
    await first.close()
    second = await lasting_maker(tmp_path)
    assert await second.get("/a") == StoreNode(b"two", 1)
    assert await second.children("/a") == ["n-0000000000"]
    assert not await second.exists("/e")
    assert await second.create("/a/n-", sequential=True) == "/a/n-0000000001"
    await second.close()


NAMES = st.sampled_from(["/a", "/b", "/a/c", "/a/d", "/a/c/e"])
OPERATIONS = st.one_of(
    st.builds(Create, NAMES, st.binary(max_size=3), st.just(False), st.just(False)),
    st.builds(Set, NAMES, st.binary(max_size=3), st.sampled_from([-1, 0, 1])),
    st.builds(Delete, NAMES, st.sampled_from([-1, 0])),
    st.builds(Check, NAMES, st.sampled_from([-1, 0])),
)


def _model(tree: dict[str, StoreNode], operations: list[Operation]) -> dict[str, StoreNode] | None:
    """The tree after the operations as a dictionary would have it, or None if one fails."""
    tree = dict(tree)
    for operation in operations:
        path = operation.path
        if isinstance(operation, Create):
            parent = path.rpartition("/")[0]
            if path in tree or (parent and parent not in tree):
                return None
            tree[path] = StoreNode(operation.data, 0)
            continue
        if path not in tree or operation.version not in (-1, tree[path].version):
            return None
        if isinstance(operation, Set):
            tree[path] = StoreNode(operation.data, tree[path].version + 1)
        elif isinstance(operation, Delete):
            if any(other.startswith(path + "/") for other in tree):
                return None
            del tree[path]
    return tree


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=50,
    deadline=None,
)
@given(st.lists(st.lists(OPERATIONS, min_size=1, max_size=4), max_size=12))
def test_store_matches_dictionary_model(
    maker: Maker, tmp_path_factory: pytest.TempPathFactory, batches: list[list[Operation]]
) -> None:
    async def compare() -> None:
        store = await maker(tmp_path_factory.mktemp("store"))
        tree: dict[str, StoreNode] = {}
        for batch in batches:
            after = _model(tree, batch)
            if after is None:
                with pytest.raises(StoreError):
                    await store.multi(batch)
            else:
                await store.multi(batch)
                tree = after
            for path in ("/a", "/b", "/a/c", "/a/d", "/a/c/e"):
                assert await store.exists(path) == (path in tree)
                if path in tree:
                    assert await store.get(path) == tree[path]
        await store.close()

    trio.run(compare)


async def test_copy_is_restored_or_refused(maker: Maker, tmp_path: Path) -> None:
    store = await maker(tmp_path)
    for path in ("/a", "/a/deleted", "/number"):
        await store.create(path, b"before")
    await store.set("/a", b"again")
    await store.create("/session", ephemeral=True)
    copy = str(tmp_path / "copy")
    try:
        await store.save(copy)
    except StoreError as refused:
        assert "is used by other programs" in str(refused)  # noqa: PT017
        with pytest.raises(StoreError, match="is used by other programs"):
            await store.restore(copy)
        await store.close()
        return
    await store.delete("/a/deleted")
    await store.create("/a/new-", sequential=True)
    for path in ("/a", "/number"):
        await store.set(path, b"after")
    await store.delete("/session")
    for _ in range(2):
        await store.restore(copy, kept=["/number"])
        assert await store.get("/a") == StoreNode(b"again", 1)
        assert await store.children("/a") == ["deleted"]
        assert await store.get("/number") == StoreNode(b"after", 1)
        assert not await store.exists("/session")
        assert await store.create("/a/new-", sequential=True) == "/a/new-0000000001"
    await store.close()

"""Following a part of a store through all that happens to the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.controller.store_watch import PAUSE_S, follow
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import EventsLostError, StoreEvent, UnavailableError
from minibroker.broker.metrics.log import EventLog


class Follower:
    """Notes its calls; pauses until the test continues it."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.go_on = trio.Event()

    async def begin(self) -> None:
        self.noted.append("begin")

    async def heard(self, event: StoreEvent) -> None:
        self.noted.append(f"{event.kind.value} {event.path}")

    async def pause(self, seconds: float) -> None:
        assert seconds == PAUSE_S
        self.noted.append("pause")
        await self.go_on.wait()

    async def run(self, store: SqliteStore) -> None:
        await follow(store, "/a", self.begin, self.heard, pause=self.pause, log=EventLog("test"))


async def test_store_watch_reads_first_then_follows_until_store_ends(nursery: trio.Nursery) -> None:
    store, follower = SqliteStore(MEMORY), Follower()
    async with trio.open_nursery() as lives:
        lives.start_soon(follower.run, store)
        await wait_all_tasks_blocked()
        await store.create("/a")
        await store.create("/b")
        await wait_all_tasks_blocked()
        await store.close()
    assert follower.noted == ["begin", "created /a"]


@pytest.mark.parametrize("is_lost", [True, False])
async def test_watch_restarts_immediately_or_after_backoff(
    is_lost: bool, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, follower = SqliteStore(MEMORY), Follower()
    watch = store.watch

    @contextmanager
    def broken(path: str) -> Iterator[Any]:
        monkeypatch.setattr(store, "watch", watch)
        with watch(path) as events:
            events.end(EventsLostError("away") if is_lost else UnavailableError(path, "away"))  # type: ignore[attr-defined]
            yield events

    monkeypatch.setattr(store, "watch", broken)
    nursery.start_soon(follower.run, store)
    await wait_all_tasks_blocked()
    if not is_lost:
        assert follower.noted == ["begin", "pause"]
        follower.go_on.set()
        await wait_all_tasks_blocked()
    await store.create("/a")
    await wait_all_tasks_blocked()
    assert [note for note in follower.noted if note != "pause"] == ["begin", "begin", "created /a"]
    await store.close()


async def test_repeated_warning_is_logged_once(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    store, tries = SqliteStore(MEMORY), 0
    wrong = iter(["away"] * 3 + ["worse"] * 2)

    async def begin() -> None:
        nonlocal tries
        tries += 1
        for text in wrong:
            raise UnavailableError("/a", text)

    async def heard(event: StoreEvent) -> None:
        del event

    async def pause(seconds: float) -> None:
        del seconds
        await trio.lowlevel.checkpoint()

    async def run() -> None:
        await follow(store, "/a", begin, heard, pause=pause, log=EventLog("test"))

    nursery.start_soon(run)
    await wait_all_tasks_blocked()
    assert tries == 6
    assert len(caplog.records) == 2
    await store.close()

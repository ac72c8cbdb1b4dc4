"""Watches: the events of each, and the error of a slow reader."""

from __future__ import annotations

import pytest

from minibroker.broker.metadata.store.tree import (
    WATCH_MAX_EVENTS,
    EventsLostError,
    StoreEvent,
    StoreEventKind,
)
from minibroker.broker.metadata.store.watches import Watches


def changed(path: str) -> StoreEvent:
    return StoreEvent(StoreEventKind.CHANGED, path)


async def test_watch_reports_its_node_and_descendants() -> None:
    watches = Watches()
    with watches.open("/a") as some, watches.open("/") as every:
        for path in ("/a", "/ab", "/a/b"):
            watches.notify(changed(path))
        watches.end()
        assert [event.path async for event in some] == ["/a", "/a/b"]
        assert [event.path async for event in every] == ["/a", "/ab", "/a/b"]


async def test_ended_watch_delivers_pending_events_before_error() -> None:
    watches = Watches()
    with watches.open("/") as events:
        watches.notify(changed("/a"))
        watches.end(EventsLostError("away"))
        watches.notify(changed("/b"))
        watches.end(EventsLostError("again"))
        assert await anext(events) == changed("/a")
        for _ in range(2):
            with pytest.raises(EventsLostError, match="away"):
                await anext(events)


async def test_slow_watch_reader_gets_events_lost_error() -> None:
    watches = Watches()
    with watches.open("/a") as events:
        for _ in range(WATCH_MAX_EVENTS + 2):
            watches.notify(changed("/a"))
        for _ in range(WATCH_MAX_EVENTS):
            await anext(events)
        with pytest.raises(EventsLostError, match="events waited at /a"):
            await anext(events)


async def test_closed_watch_reports_nothing() -> None:
    watches = Watches()
    with watches.open("/a") as events:
        pass
    watches.notify(changed("/a"))
    assert [event async for event in events] == []

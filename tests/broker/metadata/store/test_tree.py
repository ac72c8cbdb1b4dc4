"""The interface's own helpers: paths, sizes and how sequences are written."""

from __future__ import annotations

import pytest

from minibroker.broker.metadata.store.tree import (
    NODE_MAX_BYTES,
    WATCH_MAX_EVENTS,
    BadPathError,
    EventsLostError,
    StoreEvent,
    StoreEventKind,
    TooLargeError,
    Watches,
    check_data,
    check_path,
    parent_of,
    sequence_text,
)


@pytest.mark.parametrize(
    ("path", "parent"), [("/a", "/"), ("/a/b", "/a"), ("/config/topics/x.y", "/config/topics")]
)
def test_path_has_a_parent(path: str, parent: str) -> None:
    check_path(path)
    assert parent_of(path) == parent


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/./a", "/a/..", "/\0"])
def test_invalid_path_is_rejected(path: str) -> None:
    with pytest.raises(BadPathError) as caught:
        check_path(path)
    assert caught.value.path == path


def test_data_is_bounded() -> None:
    check_data("/a", bytes(NODE_MAX_BYTES))
    with pytest.raises(TooLargeError, match="1000001 bytes are more than the 1000000"):
        check_data("/a", bytes(NODE_MAX_BYTES + 1))


def test_sequences_sort_numerically() -> None:
    assert sequence_text(0) == "0000000000"
    assert sequence_text(9) < sequence_text(10) < sequence_text(2**31 - 1)


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

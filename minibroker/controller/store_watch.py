"""Watches a part of the config store that other programs write.

Owns the watch and its renewal after it is lost. It must never know what the nodes mean. Invariant:
no change is missed during a watch, because everything is read when it starts and every later event
is handled. Echoes the handlers that Kafka's ``ZooKeeperClient`` calls after each new session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from minibroker.cluster.store.tree import EventsLostError, Store, StoreError, StoreEvent
from minibroker.observability.log import EventLog

PAUSE_S: Final = 1.0
"""The pause before a store that could not be read is tried again."""

Pause = Callable[[float], Awaitable[None]]
"""Waits for a number of seconds."""


async def follow(
    store: Store,
    path: str,
    begin: Callable[[], Awaitable[None]],
    heard: Callable[[StoreEvent], Awaitable[None]],
    *,
    pause: Pause,
    log: EventLog,
) -> None:
    """Read everything and then handle each event, until the store is closed. Start again when
    events were lost or the store is unavailable. A problem is logged once while it stays the same.
    """
    told = ""
    while True:
        try:
            with store.watch(path) as events:
                await begin()
                told = ""
                async for event in events:
                    await heard(event)
                return
        except EventsLostError:
            continue
        except StoreError as error:
            if str(error) != told:
                log.warning("the config store could not be followed", path=path, why=error)
            told = str(error)
            await pause(PAUSE_S)

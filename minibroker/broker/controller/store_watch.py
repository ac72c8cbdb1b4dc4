"""Watches a part of the config store that other programs write.

Owns the watch and its renewal after it is lost. It must never know what the nodes mean. Invariant:
no change is missed during a watch, because everything is read when it starts and every later event
is handled. Echoes the handlers that Kafka's ``ZooKeeperClient`` calls after each new session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from minibroker.broker.metadata.store.tree import EventsLostError, Store, StoreError, StoreEvent
from minibroker.broker.metrics.log import EventLog

PAUSE_S: Final = 1.0
"""Pause before an unavailable store is watched again."""

Pause = Callable[[float], Awaitable[None]]
"""Waits for a number of seconds."""


async def follow(
    store: Store,
    path: str,
    apply_all: Callable[[], Awaitable[None]],
    on_event: Callable[[StoreEvent], Awaitable[None]],
    *,
    pause: Pause,
    log: EventLog,
) -> None:
    """Call ``apply_all`` and then ``on_event`` for each event, until the store is closed.

    Starts again when events were lost or the store is unavailable. The same error is logged once.
    """
    logged = ""
    while True:
        try:
            with store.watch(path) as events:
                await apply_all()
                logged = ""
                async for event in events:
                    await on_event(event)
                return
        except EventsLostError:
            continue
        except StoreError as error:
            if str(error) != logged:
                log.warning("the config store could not be watched", path=path, reason=error)
            logged = str(error)
            await pause(PAUSE_S)

"""How the controller follows a part of the config store that others write, whatever breaks.

Owns the watch and what happens when it is lost; it must never know what the nodes mean.  The
invariant: between the beginning and the end of a watch nothing escapes whoever follows, as
it looks at everything first and hears of all that happens after.  Echoes the handlers that Kafka's
``ZooKeeperClient`` calls anew after each session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from minibroker.cluster.store.tree import Event, EventsLostError, Store, StoreError
from minibroker.observability.log import Log

PAUSE_S: Final = 1.0
"""How long to wait before a store that could not be read is tried again."""

Pause = Callable[[float], Awaitable[None]]
"""Lets so many seconds pass."""


async def follow(
    store: Store,
    path: str,
    begin: Callable[[], Awaitable[None]],
    heard: Callable[[Event], Awaitable[None]],
    *,
    pause: Pause,
    log: Log,
) -> None:
    """Until the store is closed: look at everything, then hear of each event; when events were
    lost or the store is away, begin anew.  What is wrong is told once, as long as it is the same.
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

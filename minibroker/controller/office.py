"""Whether this controller still holds its office, as the config store has it.

Owns the watch over the nodes by which a broker says that it is there and leads; it must never make
them.  The invariant: a controller that another one has replaced, or that was deposed by hand, ends
instead of writing on; its next life takes the office again, or is told who has it.  Echoes the
handlers of Kafka's ``KafkaController`` for ``/controller``.
"""

from __future__ import annotations

import trio

from minibroker.cluster import layout
from minibroker.cluster.store.tree import EventsLostError, NoNodeError, Store, UnavailableError


class OfficeLost(Exception):
    """A node of ours is gone from the config store, or somebody else's now."""


async def hold_office(store: Store, broker_id: int) -> None:
    """Returns when the store is closed. Raises `OfficeLost`."""
    async with trio.open_nursery() as nursery:
        for path in (layout.CONTROLLER, layout.broker_path(broker_id)):
            data = (await store.get(path)).data
            nursery.start_soon(_hold, store, path, data)


async def _hold(store: Store, path: str, data: bytes) -> None:
    while True:
        with store.watch(path) as events:
            try:
                await _look(store, path, data)
                async for _ in events:
                    await _look(store, path, data)
                return
            except EventsLostError:
                continue  # the store was away: what happened meanwhile shows in the node


async def _look(store: Store, path: str, data: bytes) -> None:
    try:
        found = (await store.get(path)).data
    except UnavailableError:
        return  # when it is back, the watch is lost, and we look again
    except NoNodeError:
        raise OfficeLost(f"{path} was deleted") from None
    if found != data:
        raise OfficeLost(f"{path} is somebody else's now: {found!r}")

"""Whether this controller still holds its office, as the config store has it.

Owns the watch over the nodes by which a broker says that it is there and leads; it must never make
them.  The invariant: a controller that another one has replaced, or that was deposed by hand, ends
instead of writing on; its next life takes the office again, or is told who has it.  Echoes the
handlers of Kafka's ``KafkaController`` for ``/controller``.
"""

from __future__ import annotations

import trio

from minibroker.cluster import layout
from minibroker.cluster.store.tree import (
    EventsLostError,
    NoNodeError,
    Store,
    StoreError,
    UnavailableError,
)


async def hold_office(store: Store, broker_id: int) -> str:
    """Why the office is lost, once it is; empty when the store was closed."""
    reasons: list[str] = []
    async with trio.open_nursery() as nursery:

        async def hold(path: str) -> None:
            try:
                reasons.append(await _hold(store, path, (await store.get(path)).data))
            except StoreError as error:
                reasons.append(str(error))
            nursery.cancel_scope.cancel()

        for path in (layout.CONTROLLER, layout.broker_path(broker_id)):
            nursery.start_soon(hold, path)
    return reasons[0]


async def _hold(store: Store, path: str, data: bytes) -> str:
    """Why a node is not ours any more; empty when the store was closed."""
    while True:
        with store.watch(path) as events:
            try:
                if reason := await _look(store, path, data):
                    return reason
                async for _ in events:
                    if reason := await _look(store, path, data):
                        return reason
                return ""
            except EventsLostError:
                continue  # the store was away: what happened meanwhile shows in the node


async def _look(store: Store, path: str, data: bytes) -> str:
    try:
        found = (await store.get(path)).data
    except UnavailableError:
        return ""  # when it is back, the watch is lost, and we look again
    except NoNodeError:
        return f"{path} was deleted"
    return "" if found == data else f"{path} is somebody else's now: {found!r}"

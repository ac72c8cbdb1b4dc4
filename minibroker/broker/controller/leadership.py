"""Watches whether this controller is still the active one.

Owns the watch of the nodes that register a broker and elect the controller. It must never create
them. Invariant: a controller that was replaced, or whose node was deleted, ends instead of writing;
its next incarnation is elected again or reports the active controller. Echoes the handlers of
Kafka's ``KafkaController`` for ``/controller``.
"""

from __future__ import annotations

import trio

from minibroker.broker.metadata import layout
from minibroker.broker.metadata.store.tree import (
    EventsLostError,
    NoNodeError,
    Store,
    StoreError,
    UnavailableError,
)


async def watch_leadership(store: Store, broker_id: int) -> str:
    """Wait until this controller is no longer active; return why, empty if the store closed."""
    reasons: list[str] = []
    async with trio.open_nursery() as nursery:

        async def watch_node(path: str) -> None:
            try:
                reasons.append(await _watch_node(store, path, (await store.get(path)).data))
            except StoreError as error:
                reasons.append(str(error))
            nursery.cancel_scope.cancel()

        for path in (layout.CONTROLLER, layout.broker_path(broker_id)):
            nursery.start_soon(watch_node, path)
    return reasons[0]


async def _watch_node(store: Store, path: str, data: bytes) -> str:
    """Wait until a node is no longer this broker's; return why, empty if the store closed."""
    while True:
        with store.watch(path) as events:
            try:
                if reason := await _loss_reason(store, path, data):
                    return reason
                async for _ in events:
                    if reason := await _loss_reason(store, path, data):
                        return reason
                return ""
            except EventsLostError:
                continue  # The store was unavailable: the node shows what happened.


async def _loss_reason(store: Store, path: str, data: bytes) -> str:
    try:
        found = (await store.get(path)).data
    except UnavailableError:
        return ""  # Once it is available, the watch is lost and the node is read again.
    except NoNodeError:
        return f"{path} was deleted"
    return "" if found == data else f"{path} belongs to another broker now: {found!r}"

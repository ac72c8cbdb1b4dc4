"""Addresses of the hosts that are named in limits.

Owns the names to resolve and their addresses. It must never know what the addresses are for.
Invariant: no connection waits for a resolver. A host has no addresses until they are known, and a
callback reports the change; each host is resolved once while a limit names it. Kafka's
``ConnectionQuotas`` keeps an ``InetAddress`` in place of each name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import trio

from minibroker.runtime.hosts import is_address, look_up


class HostAddresses:
    """Hosts and their addresses; ``run`` must be running to resolve them."""

    def __init__(
        self, changed: Callable[[], None], unknown: Callable[[str, OSError], None]
    ) -> None:
        """``changed`` is called when more is known, ``unknown`` for a host that has no address."""
        self._changed = changed
        self._unknown = unknown
        self._known: dict[str, Sequence[str]] = {}
        self._wanted: set[str] = set()
        self._asked: set[str] = set()
        self._more = trio.Event()
        self._settled = trio.Event()

    def want(self, hosts: Collection[str]) -> None:
        """Resolve these hosts if they are not known, and forget all others."""
        self._wanted = {host for host in hosts if not is_address(host)}
        self._known = {host: self._known[host] for host in self._wanted & set(self._known)}
        self._more.set()

    def addresses(self, host: str) -> Sequence[str]:
        """Return the known addresses of a host; an address is its own."""
        return [host] if is_address(host) else self._known.get(host, ())

    def unknown(self, hosts: Collection[str]) -> list[str]:
        """Return those of the hosts that have no address, or none yet."""
        return sorted({host for host in hosts if not self.addresses(host)})

    @property
    def are_settled(self) -> bool:
        """Whether all hosts have been looked up."""
        return self._wanted <= self._known.keys()

    async def settled(self) -> None:
        """Wait until all hosts have been looked up."""
        while not self.are_settled:
            await self._settled.wait()

    async def run(self) -> None:
        """Look up hosts until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for host in sorted(self._wanted - set(self._known) - self._asked):
                    self._asked.add(host)
                    nursery.start_soon(self._look_up, host)
                self._more = trio.Event()
                await self._more.wait()

    async def _look_up(self, host: str) -> None:
        try:
            found: Sequence[str] = await look_up(host)
        except OSError as error:
            found = ()
            if host in self._wanted:
                self._unknown(host, error)
        self._asked.discard(host)
        if host in self._wanted:
            self._known[host] = found
        if found:
            self._changed()
        self._more.set()
        self._settled.set()
        self._settled = trio.Event()

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
        self._hosts: set[str] = set()
        self._in_progress: set[str] = set()
        self._hosts_changed = trio.Event()
        self._resolved = trio.Event()

    def set_hosts(self, hosts: Collection[str]) -> None:
        """Resolve these hosts if they are not known, and forget all others."""
        self._hosts = {host for host in hosts if not is_address(host)}
        self._known = {host: self._known[host] for host in self._hosts & set(self._known)}
        self._hosts_changed.set()

    def addresses(self, host: str) -> Sequence[str]:
        """Return the known addresses of a host; of an address, the address itself."""
        return [host] if is_address(host) else self._known.get(host, ())

    def unknown(self, hosts: Collection[str]) -> list[str]:
        """Return those of the hosts that have no address, or none yet."""
        return sorted({host for host in hosts if not self.addresses(host)})

    @property
    def are_resolved(self) -> bool:
        """Whether all hosts have been looked up."""
        return self._hosts <= self._known.keys()

    async def wait_resolved(self) -> None:
        """Wait until all hosts have been looked up."""
        while not self.are_resolved:
            await self._resolved.wait()

    async def run(self) -> None:
        """Look up hosts until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for host in sorted(self._hosts - set(self._known) - self._in_progress):
                    self._in_progress.add(host)
                    nursery.start_soon(self._look_up, host)
                self._hosts_changed = trio.Event()
                await self._hosts_changed.wait()

    async def _look_up(self, host: str) -> None:
        try:
            found: Sequence[str] = await look_up(host)
        except OSError as error:
            found = ()
            if host in self._hosts:
                self._unknown(host, error)
        self._in_progress.discard(host)
        if host in self._hosts:
            self._known[host] = found
        if found:
            self._changed()
        self._hosts_changed.set()
        self._resolved.set()
        self._resolved = trio.Event()

"""How a network processor reaches the I/O workers: over links, and one of them directly.

Owns the links of one processor. It must never know what is requested. Invariant: when
``wait_connected`` returns, no worker still executes requests of a former process of this processor,
which refer to the shared memory that this one writes to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minibroker.broker.process.environment import Environment
from minibroker.broker.process.worker_links import worker_link
from minibroker.broker.settings import QUEUED_MAX_REQUESTS
from minibroker.runtime.rpc import Link, LocalPeer

if TYPE_CHECKING:
    import trio


class WorkerPeers:
    """The workers as one processor sees them."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._local = env.local_worker
        self._links = {
            index: worker_link(
                env,
                index,
                requests_max=env.settings[QUEUED_MAX_REQUESTS],
                on_polled=env.work_time.add_idle,
            )
            for index in range(env.workers)
            if self._local is None or index != env.index
        }

    def peers(self) -> Mapping[int, Link | LocalPeer]:
        """Return the workers by index."""
        local = {} if self._local is None else {self._env.index: LocalPeer(self._local.execute)}
        return {**self._links, **local}

    def start(self, nursery: trio.Nursery) -> None:
        """Connect to the workers of other processes, and reconnect until cancelled."""
        for link in self._links.values():
            nursery.start_soon(link.run)

    async def wait_connected(self) -> None:
        """Wait until all workers serve and have dropped requests of a former process."""
        for link in self._links.values():
            await link.wait_connected()
        if self._local is not None:
            await self._local.wait_serving()

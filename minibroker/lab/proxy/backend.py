"""The control API of a proxy: its health, its fault rules and its journal.

Owns the choice of operations, and the answer about health. It must never know HTTP. Invariant: the
operations are those of a broker, with the same paths and fields; those that need a broker's state
are left out.
"""

from __future__ import annotations

import os
from typing import Final

import trio

from minibroker import __version__
from minibroker.lab.control.backend import Health, ProcessHealth
from minibroker.lab.control.journal_shapes import JournalBackend
from minibroker.lab.control.operation import ApiOperation
from minibroker.lab.control.routes import OPERATIONS
from minibroker.lab.proxy.faults import ProxyFaults

_PREFIXES: Final = ("/v1/faults", "/v1/journal", "/v1/health", "/openapi.json")

PROXY_OPERATIONS: Final[tuple[ApiOperation, ...]] = tuple(
    each for each in OPERATIONS if each.path == "/" or each.path.startswith(_PREFIXES)
)
"""The operations that a proxy has."""


class ProxyBackend:
    """Implements what these operations use of ``control.backend.Backend``."""

    def __init__(self, faults: ProxyFaults, journal: JournalBackend) -> None:
        self.journal = journal
        self._started = trio.current_time()
        self.faults = faults.faults
        self.fault = faults.fault
        self.add_fault = faults.add_fault
        self.remove_fault = faults.remove_fault
        self.remove_faults = faults.remove_faults
        self.release_fault = faults.release_fault
        self.wait_fault = faults.wait_fault

    async def health(self) -> Health:
        """Return the state of the one process."""
        return Health(
            ready=True,
            status="ready",
            conditions=(),
            version=__version__,
            uptime_ms=int((trio.current_time() - self._started) * 1000),
            processes=(ProcessHealth("proxy", os.getpid(), "running", 0),),
        )

"""The operations of the control API on fault rules, for the backend.

Owns the delegation to the fault rules, which are imported by the first request about them. It must
never decide anything. Invariant: a broker without fault rules imports nothing for them. Kafka has
no equivalent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minibroker.broker.controller.faults import FaultController
    from minibroker.lab.control.fault_shapes import FaultList, FaultRelease, FaultRule, FaultView


class FaultOperations:
    """Implements ``control.fault_shapes.FaultsBackend``."""

    def __init__(self, faults: Callable[[], FaultController]) -> None:
        self._faults = faults

    async def faults(self) -> FaultList:
        """All fault rules."""
        return await self._faults().faults()

    async def fault(self, fault_id: str) -> FaultView:
        """One fault rule."""
        return await self._faults().fault(fault_id)

    async def add_fault(self, rule: FaultRule) -> FaultView:
        """Add a fault rule; returns when every process applies it."""
        return await self._faults().add_fault(rule)

    async def remove_fault(self, fault_id: str) -> None:
        """Remove a fault rule; returns when no process applies it."""
        await self._faults().remove_fault(fault_id)

    async def remove_faults(self) -> None:
        """Remove all fault rules."""
        await self._faults().remove_faults()

    async def release_fault(self, fault_id: str) -> FaultRelease:
        """Release what a fault rule holds."""
        return await self._faults().release_fault(fault_id)

    async def wait_fault(self, fault_id: str, hits: int, timeout_ms: int) -> FaultView:
        """Wait for hits of a fault rule."""
        return await self._faults().wait_fault(fault_id, hits, timeout_ms)

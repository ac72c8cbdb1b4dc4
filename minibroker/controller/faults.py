"""The fault rules of a broker: set by the control API, asked by the processors.

Owns their publication to the processors, and the actions on the broker's own processes. It must
never know how a fault of a request is carried out. Invariant: a rule that was added or removed is
applied by every connected processor when the call returns.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from minibroker.apis.registry import APIS
from minibroker.control.fault_shapes import FaultList, FaultRelease, FaultRule, FaultView
from minibroker.control.schema import Fault, InvalidJson
from minibroker.controller.metadata_publisher import MetadataPublisher
from minibroker.faults.register import FaultRegister
from minibroker.faults.rulebook import Firing
from minibroker.observability.log import EventLog
from minibroker.process.environment import CONTROLLER
from minibroker.process.messages import (
    ClockAdvanced,
    FaultAct,
    FaultHeld,
    FaultMatched,
    FaultRules,
)
from minibroker.runtime.clock import ControlledClock
from minibroker.runtime.roles import RoleStatus

_log = EventLog(CONTROLLER)


class FaultController:
    """Implements ``control.fault_shapes.FaultsBackend``."""

    def __init__(
        self,
        publisher: MetadataPublisher,
        clock: ControlledClock,
        processors: Sequence[str],
        statuses: Callable[[], Sequence[RoleStatus]],
    ) -> None:
        """``processors`` are the names of the processes that apply rules."""
        self._publisher = publisher
        self._clock = clock
        self._statuses = statuses
        self._processors = processors
        self._register = FaultRegister(APIS, clock.now, clock.sleep_real)
        self._number = 0

    # The control API --------------------------------------------------------------------------

    async def faults(self) -> FaultList:
        """All rules."""
        return self._register.views()

    async def fault(self, fault_id: str) -> FaultView:
        """One rule."""
        return self._register.view(fault_id)

    async def add_fault(self, rule: FaultRule) -> FaultView:
        """Add a rule; returns when every processor applies it."""
        self._check_process(rule)
        state = self._register.add(rule)
        await self._publish(state.active.id)
        return state.view(self._clock.now())

    def _check_process(self, rule: FaultRule) -> None:
        if rule.process is None:
            return
        known = [status.name for status in self._statuses() if status.pid]
        if rule.action == "pause":  # A stopped controller could not continue itself.
            known = [name for name in known if name != CONTROLLER]
        if rule.process not in known:
            names = ", ".join(known) or "none"
            raise InvalidJson([Fault("process", f"is not one of the processes here: {names}")])

    async def remove_fault(self, fault_id: str) -> None:
        """Remove a rule; returns when no processor applies it."""
        self._register.remove(fault_id)
        await self._publish()

    async def remove_faults(self) -> None:
        """Remove all rules."""
        self._register.clear()
        await self._publish()

    async def release_fault(self, fault_id: str) -> FaultRelease:
        """Release what a rule holds."""
        return self._register.release(fault_id)

    async def wait_fault(self, fault_id: str, hits: int, timeout_ms: int) -> FaultView:
        """Wait for hits of a rule, for real time at most."""
        return await self._register.wait(fault_id, hits, timeout_ms)

    async def _publish(self, added: str = "") -> None:
        self._number += 1
        rules = FaultRules(self._number, self._register.active())
        self._publisher.faults = rules
        await self._publisher.request_all(rules._replace(added=added), self._processors)

    # The processors ---------------------------------------------------------------------------

    def decide(self, matched: FaultMatched) -> tuple[Firing, ...]:
        """The rules that fire of those that match."""
        return self._register.decide(matched.candidates)

    async def hold(self, held: FaultHeld) -> None:
        """Return when a rule has been released since it fired."""
        await self._register.hold(held.rule_id, held.releases)

    async def act(self, request: FaultAct) -> None:
        """Carry out a rule that acts on the broker."""
        state = self._register.find(request.rule_id)
        if state is None:
            return
        rule = state.active.rule
        if rule.action == "advance":
            self._clock.advance(rule.advance_ms or 0)
            await self._publisher.request_all(ClockAdvanced())
            return
        pids = [status.pid for status in self._statuses() if status.name == rule.process]
        if not any(pids):
            return  # It is being restarted.
        if rule.action == "kill":
            _log.warning("a fault rule kills a process", rule=request.rule_id, process=rule.process)
            os.kill(pids[0], signal.SIGKILL)
            return
        os.kill(pids[0], signal.SIGSTOP)
        try:
            await self._clock.sleep_real((rule.pause_ms or 0) / 1000)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pids[0], signal.SIGCONT)

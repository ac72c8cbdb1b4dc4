"""The fault rules of a broker: set by the control API, asked by the processors.

Owns the one rulebook, its publication to the processors, and those who wait for it. It must never
know how a fault is carried out. Invariant: a rule that was added or removed is applied by every
connected processor when the call returns, and every match of every process is counted here. The
rules last as long as this process: they are not stored.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from minibroker.apis.registry import APIS
from minibroker.control.backend import BackendError, Conflict, NotFound
from minibroker.control.fault_shapes import (
    RULES_MAX,
    FaultList,
    FaultRelease,
    FaultRule,
    FaultView,
)
from minibroker.control.schema import Fault, InvalidJson
from minibroker.controller.metadata_publisher import MetadataPublisher
from minibroker.faults.rulebook import DuplicateRule, Firing, Rulebook, RuleState, TooManyRules
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

TIMED_OUT_STATUS: Final = 408

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
        self._book = Rulebook(APIS)
        self._number = 0
        self._changed = trio.Event()

    # The control API --------------------------------------------------------------------------

    async def faults(self) -> FaultList:
        """All rules."""
        now = self._clock.now()
        return FaultList(tuple(state.view(now) for state in self._book.states()))

    async def fault(self, fault_id: str) -> FaultView:
        """One rule."""
        return self._state(fault_id).view(self._clock.now())

    async def add_fault(self, rule: FaultRule) -> FaultView:
        """Add a rule; returns when every processor applies it."""
        self._check_process(rule)
        try:
            state = self._book.add(rule, self._clock.now())
        except DuplicateRule as error:
            raise Conflict("DUPLICATE_RULE", f"there is a rule {str(error)!r}") from None
        except TooManyRules:
            raise Conflict(
                "TOO_MANY_RULES", f"{RULES_MAX} rules are set", "Remove those not needed."
            ) from None
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
        self._release(self._state(fault_id))
        self._book.remove(fault_id)
        await self._publish()

    async def remove_faults(self) -> None:
        """Remove all rules."""
        for state in self._book.states():
            self._release(state)
        self._book.clear()
        await self._publish()

    async def release_fault(self, fault_id: str) -> FaultRelease:
        """Release what a rule holds."""
        state = self._state(fault_id)
        held = state.held
        self._release(state)
        return FaultRelease(held)

    async def wait_fault(self, fault_id: str, hits: int, timeout_ms: int) -> FaultView:
        """Wait for hits of a rule, for real time at most."""
        state = self._state(fault_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_after, timeout_ms, nursery.cancel_scope)
            while state.hits < hits and self._book.find(fault_id) is state:
                await self._changed.wait()
            nursery.cancel_scope.cancel()
        if state.hits >= hits:
            return state.view(self._clock.now())
        self._state(fault_id)
        raise BackendError(
            "REQUEST_TIMED_OUT",
            f"rule {fault_id} has fired {state.hits} of {hits} times within {timeout_ms} ms",
            f"Its selectors have matched {state.matches} times.",
            status=TIMED_OUT_STATUS,
        )

    async def _cancel_after(self, timeout_ms: int, scope: trio.CancelScope) -> None:
        await self._clock.sleep_real(timeout_ms / 1000)
        scope.cancel()

    def _state(self, fault_id: str) -> RuleState:
        state = self._book.find(fault_id)
        if state is None:
            raise NotFound(
                "NO_SUCH_FAULT", f"there is no fault rule {fault_id!r}", "GET /v1/faults lists all."
            )
        return state

    async def _publish(self, added: str = "") -> None:
        self._number += 1
        rules = FaultRules(self._number, self._book.active())
        self._publisher.faults = rules
        await self._publisher.request_all(rules._replace(added=added), self._processors)

    # The processors ---------------------------------------------------------------------------

    def decide(self, matched: FaultMatched) -> tuple[Firing, ...]:
        """The rules that fire of those that match."""
        fired = self._book.decide(matched.candidates, self._clock.now())
        if fired:
            self._wake()
        return fired

    async def hold(self, held: FaultHeld) -> None:
        """Return when a rule has been released since it fired."""
        state = self._book.find(held.rule_id)
        if state is None:
            return
        state.held += 1
        try:
            while state.releases == held.releases:
                await self._changed.wait()
        finally:
            state.held -= 1

    async def act(self, request: FaultAct) -> None:
        """Carry out a rule that acts on the broker."""
        state = self._book.find(request.rule_id)
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

    def _release(self, state: RuleState) -> None:
        state.releases += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

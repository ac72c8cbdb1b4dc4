"""The fault rules of a broker: set by the control API, applied by processors and workers.

Owns their publication to the processes, and the actions on the broker's own processes. It must
never know how a fault of a request is carried out. Invariant: a rule that was added or removed is
applied by every connected process when the call returns, and rules survive this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from minibroker.broker.controller.affected import affected
from minibroker.broker.controller.fault_store import FaultStore
from minibroker.broker.controller.metadata_publisher import MetadataPublisher
from minibroker.broker.controller.processes import HandOver, ProcessSignals
from minibroker.broker.metadata.image import Update
from minibroker.broker.process.environment import CONTROLLER, PROCESSOR, WORKER
from minibroker.broker.process.messages import ClockAdvanced
from minibroker.lab.control.backend import Unavailable
from minibroker.lab.control.fault_shapes import (
    FaultHold,
    FaultList,
    FaultRelease,
    FaultRule,
    FaultView,
)
from minibroker.lab.faults.actions import STORAGE_ACTIONS
from minibroker.lab.faults.matching import Candidate, PointMatcher
from minibroker.lab.faults.points import APPLIED
from minibroker.lab.faults.register import FaultRegister
from minibroker.lab.faults.rulebook import Firing
from minibroker.lab.faults.rules import ActiveRule, ServedVersions
from minibroker.lab.observers.messages import FaultAct, FaultHeld, FaultMatched, FaultRules
from minibroker.runtime.clock import ControlledClock
from minibroker.runtime.roles import RoleStatus
from minibroker_protocol.meanings import Meaning


class FaultController:
    """Implements ``control.fault_shapes.FaultsBackend``."""

    def __init__(
        self,
        publisher: MetadataPublisher,
        clock: ControlledClock,
        subscribers: Sequence[str],
        statuses: Callable[[], Sequence[RoleStatus]],
        store: FaultStore,
        *,
        served: ServedVersions,
        on_clock: Callable[[float], object],
        on_process: Callable[[str, str, str], object],
        hand_over: HandOver,
    ) -> None:
        """``subscribers`` are the names of the processes that apply rules.

        ``served`` are the APIs that they serve. ``store`` has the rules that the former controller
        of this start has left. ``on_clock`` is called when a rule has changed the clock, with its
        time before in ms since 1970, and ``on_process`` and ``hand_over`` as ``ProcessSignals``
        calls them.
        """
        self._publisher = publisher
        self._clock = clock
        self._processes = ProcessSignals(clock, statuses, on_process, hand_over)
        self._subscribers = subscribers
        self._register = FaultRegister(served, clock.now, clock.sleep_real, store)
        self._matcher = PointMatcher()
        self._number = 0
        self._publishing = trio.Lock()
        self._has_unsent = False
        """Whether a change was cancelled before every process had it."""
        self._store = store
        self._on_clock = on_clock
        publisher.further.append(self._further)
        saved = store.load()
        self._register.restore(*saved)
        for active in self._register.active():
            self._matcher.add(active)
        self._follow_points()

    # The control API --------------------------------------------------------------------------

    async def faults(self) -> FaultList:
        """All rules."""
        return self._register.views()

    async def fault(self, fault_id: str) -> FaultView:
        """One rule."""
        return self._register.view(fault_id)

    async def add_fault(self, rule: FaultRule) -> FaultView:
        """Add a rule; returns when every process applies it."""
        if rule.process is not None:
            self._processes.check(rule.action, rule.process)
        state = self._register.add(rule)
        if rule.action in STORAGE_ACTIONS and self._store.slot(state.active.id) < 0:
            self._register.remove(state.active.id)
            raise Unavailable("KAFKA_STORAGE_ERROR", "the rule cannot be stored for the workers")
        self._matcher.add(state.active)
        await self._publish(FaultRules(0, (self._shared(state.active),)))
        return state.view(self._clock.now())

    async def remove_fault(self, fault_id: str) -> None:
        """Remove a rule; returns when no process applies it."""
        self._register.remove(fault_id)
        self._matcher.remove(fault_id)
        await self._publish(FaultRules(0, removed=(fault_id,)))

    async def remove_faults(self) -> None:
        """Remove all rules."""
        self._register.clear()
        self._matcher = PointMatcher()
        await self._publish(FaultRules(0, replaces=True))

    async def release_fault(self, fault_id: str) -> FaultRelease:
        """Release what a rule holds."""
        return self._register.release(fault_id)

    async def wait_fault(self, fault_id: str, hits: int, timeout_ms: int) -> FaultView:
        """Wait for hits of a rule, for real time at most."""
        return await self._register.wait(fault_id, hits, timeout_ms)

    async def _publish(self, change: FaultRules) -> None:
        """Send a change to every process, after those before it."""
        self._follow_points()
        async with self._publishing:
            self._number += 1
            change = change._replace(number=self._number)
            if self._has_unsent:
                change = self._all_rules() or change._replace(removed=(), replaces=True)
            self._has_unsent = True
            await self._publisher.request_all(change, self._subscribers)
            self._has_unsent = False

    def _follow_points(self) -> None:
        """Hold changes of metadata only while a rule may."""
        self._publisher.before_sending = self.hold_update if self._matcher else None

    def _further(self, role: str) -> FaultRules | None:
        return self._all_rules() if role in (PROCESSOR, WORKER) else None

    def _all_rules(self) -> FaultRules | None:
        """What a process gets that registers; None if no rule is set."""
        active = self._register.active()
        if not active:
            return None
        return FaultRules(self._number, tuple(map(self._shared, active)), replaces=True)

    def _shared(self, active: ActiveRule) -> ActiveRule:
        """A rule with what workers need to count it."""
        state = self._register.find(active.id)
        added = 0.0 if state is None else state.added
        return active._replace(slot=self._store.slot(active.id), added=added)

    # Processors and workers -------------------------------------------------------------------

    def decide(self, matched: FaultMatched) -> tuple[Firing, ...]:
        """The rules that fire of those that match."""
        return self._register.decide(matched.candidates)

    async def hold(self, held: FaultHeld) -> None:
        """Return when a rule has been released since it fired."""
        await self._register.hold(*held)

    async def hold_update(self, update: Update) -> None:
        """Hold a change of metadata before it is published, if rules do."""
        matched: dict[str, FaultHold] = {}
        for topic, resource in affected(update):
            keys = {Meaning.TOPIC: topic, Meaning.RESOURCE: resource}
            what = FaultHold(CONTROLLER, topic=topic, resource=resource)
            for candidate in self._matcher.match(APPLIED, keys):
                matched.setdefault(candidate.rule_id, what)
        for fired in self._register.decide([Candidate(each, None) for each in matched]):
            await self._register.hold(fired.rule_id, fired.releases, matched[fired.rule_id])

    async def act(self, request: FaultAct) -> None:
        """Carry out a rule that acts on the broker, or on another request."""
        state = self._register.find(request.rule_id)
        if state is None:
            return
        rule = state.active.rule
        if rule.action == "reorder":
            self._register.overtaken(request.rule_id)
            return
        if rule.action == "advance":
            before = self._clock.wall_ms()
            self._clock.advance(rule.advance_ms or 0)
            self._on_clock(before)
            await self._publisher.request_all(ClockAdvanced())
            return
        if rule.action == "kill":
            await self._processes.kill(rule.process or "", f"fault rule {request.rule_id}")
            return
        await self._processes.pause(rule.process or "", rule.pause_ms or 0)

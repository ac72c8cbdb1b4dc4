"""The fault rules of a broker, published to its processes.

Owns the publication of rules, and the rules that act on the broker's processes. It must never know
how a fault of a request is carried out. Invariant: a rule that was added or removed is applied by
every connected process when the call returns. Imported by the first request about faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from minibroker.broker.metadata.image import (
    TOPIC,
    Change,
    ConfigChanged,
    LeadersElected,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
    Update,
)
from minibroker.broker.process.environment import (
    CONTROLLER,
    PROCESSOR,
    WORKER,
    note_clock,
    role_name,
)
from minibroker.broker.process.messages import ClockAdvanced
from minibroker.lab.errors import Unavailable
from minibroker.lab.faults.actions import Kill, Pause
from minibroker.lab.faults.fault_rule import (
    FaultHold,
    FaultRule,
    FaultView,
    ServedVersions,
)
from minibroker.lab.faults.matching import Candidate, PointMatcher
from minibroker.lab.faults.places import APPLIED
from minibroker.lab.faults.register import FaultRegister, FaultStore, is_counted_by_workers
from minibroker.lab.faults.rulebook import Firing
from minibroker.lab.observers.messages import FaultAct, FaultHeld, FaultMatched, FaultRules
from minibroker_protocol.meanings import Meaning

if TYPE_CHECKING:
    from minibroker.broker.process.environment import Environment
    from minibroker.broker.roles.metadata_publisher import MetadataPublisher
    from minibroker.lab.control.processes import ProcessSignals


class BrokerFaults:
    """The fault rules of a broker, which its processors and workers apply.

    Implements ``faults.actions.ControlledProcesses``.
    """

    def __init__(
        self,
        env: Environment,
        publisher: MetadataPublisher,
        processes: ProcessSignals,
        store: FaultStore,
        *,
        served: ServedVersions,
    ) -> None:
        """``store`` has the rules that the former controller of this start has left.

        ``served`` are the APIs that the processes serve.
        """
        self._env = env
        self._publisher = publisher
        self._processes = processes
        self._subscribers = [role_name(PROCESSOR, index) for index in range(env.processors)]
        self._subscribers += [role_name(WORKER, index) for index in range(env.workers)]
        self.register: Final = FaultRegister(served, env.clock.now, env.clock.sleep_real, store)
        self._matcher = PointMatcher()
        self._number = 0
        self._publishing = trio.Lock()
        self._has_unsent = False
        """Whether a change was cancelled before every process had it."""
        publisher.further.append(self._further)
        for active in self.register.book.active():
            self._matcher.add(active)
        self._follow_points()

    async def add(self, rule: FaultRule) -> FaultView:
        """Add a rule; returns when every process applies it."""
        if isinstance(rule.action, Kill | Pause):
            self._processes.check(rule.action.name, rule.action.process)
        state = self.register.add(rule)
        if is_counted_by_workers(state) and state.active.slot < 0:
            self.register.remove(state.active.id)
            raise Unavailable("KAFKA_STORAGE_ERROR", "the rule cannot be stored for the workers")
        self._matcher.add(state.active)
        await self._publish(FaultRules(0, (state.active,)))
        return state.view(self._env.clock.now())

    async def remove(self, fault_id: str) -> None:
        """Remove a rule; returns when no process applies it."""
        self.register.remove(fault_id)
        self._matcher.remove(fault_id)
        await self._publish(FaultRules(0, removed=(fault_id,)))

    async def remove_all(self) -> None:
        """Remove all rules."""
        self.register.clear()
        self._matcher = PointMatcher()
        await self._publish(FaultRules(0, replaces=True))

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
        active = self.register.book.active()
        if not active:
            return None
        return FaultRules(self._number, active, replaces=True)

    # Processors and workers -------------------------------------------------------------------

    def decide(self, matched: FaultMatched) -> tuple[Firing, ...]:
        """The rules that fire of those that match."""
        return self.register.decide(matched.candidates)

    async def hold(self, held: FaultHeld) -> None:
        """Return when a rule has been released since it fired."""
        await self.register.hold(*held)

    async def hold_update(self, update: Update) -> None:
        """Hold a change of metadata before it is published, if rules do."""
        matched: dict[str, FaultHold] = {}
        for topic, resource in map(_affected, update.changes):
            keys = {Meaning.TOPIC: topic, Meaning.RESOURCE: resource}
            what = FaultHold(CONTROLLER, topic=topic, resource=resource)
            for candidate in self._matcher.match(APPLIED, keys):
                matched.setdefault(candidate.rule_id, what)
        for fired in self.register.decide([Candidate(each, None) for each in matched]):
            await self.register.hold(fired.rule_id, fired.releases, matched[fired.rule_id])

    async def act(self, request: FaultAct) -> None:
        """Carry out a rule that acts on the broker, or on another request."""
        state = self.register.book.find(request.rule_id)
        if state is not None:
            await state.active.rule.action.act(self, request.rule_id)

    async def kill(self, process: str, reason: str) -> None:
        await self._processes.kill(process, reason)

    async def pause(self, process: str, duration_ms: int) -> None:
        await self._processes.pause(process, duration_ms)

    async def advance_clock(self, duration_ms: int) -> None:
        """Advance the clock of all processes."""
        clock = self._env.clock
        before = clock.wall_ms()
        clock.advance(duration_ms)
        note_clock(self._env, before)
        await self._publisher.request_all(ClockAdvanced())

    def overtaken(self, rule_id: str) -> None:
        self.register.overtaken(rule_id)


def _affected(change: Change) -> tuple[str | None, str | None]:
    """Topic and resource of a change, as rules select them; None if there is none.

    A change of anything else affects one unnamed thing, so that a rule without selectors matches
    every update.
    """
    match change:
        case TopicCreated(topic):
            return topic.name, None
        case TopicDeleted(name) | PartitionsAdded(name) | LeadersElected(name):
            return name, None
        case ConfigChanged(kind, name):
            return (name if kind == TOPIC else None), name
        case _:
            return None, None

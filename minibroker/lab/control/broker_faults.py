"""The fault rules of a broker: published to its processes, and kept in files.

Owns the publication of rules, the rules that act on the broker's processes, and two files of the
data directory: the rules, to which each change is appended, and the counts, in memory that the
kernel keeps when the process dies. It must never know how a fault of a request is carried out.
Invariant: a rule that was added or removed is applied by every connected process when the call
returns. Rules and counts survive a killed controller, those of an earlier start of the broker are
not restored, and a count is as new as the last decision. Nothing is synced: a crash of the machine
ends the broker and its rules. Imported by the first request about faults.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from minibroker.broker.log.data_directory import FAULT_COUNTS_FILE, FAULT_RULES_FILE
from minibroker.broker.metadata.image import (
    TOPIC,
    Change,
    ConfigChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
    Update,
)
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import (
    CONTROLLER,
    PROCESSOR,
    WORKER,
    note_clock,
    role_name,
)
from minibroker.broker.process.messages import ClockAdvanced
from minibroker.lab.errors import Unavailable
from minibroker.lab.faults.actions import STORAGE_ACTIONS
from minibroker.lab.faults.fault_counts import FaultCounts
from minibroker.lab.faults.fault_rule import RULES_MAX, FaultHold, FaultRule, FaultView
from minibroker.lab.faults.matching import Candidate, PointMatcher
from minibroker.lab.faults.points import APPLIED
from minibroker.lab.faults.register import FaultRegister
from minibroker.lab.faults.rulebook import Firing, RuleState, SavedRule
from minibroker.lab.faults.rules import ActiveRule, ServedVersions
from minibroker.lab.observers.messages import FaultAct, FaultHeld, FaultMatched, FaultRules
from minibroker.lab.schema import InvalidJson, parse, to_json
from minibroker_protocol.meanings import Meaning

if TYPE_CHECKING:
    from minibroker.broker.controller.metadata_publisher import MetadataPublisher
    from minibroker.broker.process.environment import Environment
    from minibroker.lab.control.processes import ProcessSignals

SURPLUS_LINES_MAX: Final = 100
"""Lines of the file about rules that were removed, if there are fewer than twice as many rules."""

_log = EventLog(CONTROLLER)


class BrokerFaults:
    """The fault rules of a broker, which its processors and workers apply."""

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
        self._store = store
        publisher.further.append(self._further)
        self.register.restore(*store.load())
        for active in self.register.active():
            self._matcher.add(active)
        self._follow_points()

    async def add(self, rule: FaultRule) -> FaultView:
        """Add a rule; returns when every process applies it."""
        if rule.process is not None:
            self._processes.check(rule.action, rule.process)
        state = self.register.add(rule)
        if rule.action in STORAGE_ACTIONS and self._store.slot(state.active.id) < 0:
            self.register.remove(state.active.id)
            raise Unavailable("KAFKA_STORAGE_ERROR", "the rule cannot be stored for the workers")
        self._matcher.add(state.active)
        await self._publish(FaultRules(0, (self._shared(state.active),)))
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
        active = self.register.active()
        if not active:
            return None
        return FaultRules(self._number, tuple(map(self._shared, active)), replaces=True)

    def _shared(self, active: ActiveRule) -> ActiveRule:
        """A rule with what workers need to count it."""
        state = self.register.find(active.id)
        added = 0.0 if state is None else state.added
        return active._replace(slot=self._store.slot(active.id), added=added)

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
        state = self.register.find(request.rule_id)
        if state is None:
            return
        rule = state.active.rule
        if rule.action == "reorder":
            self.register.overtaken(request.rule_id)
            return
        if rule.action == "advance":
            clock = self._env.clock
            before = clock.wall_ms()
            clock.advance(rule.advance_ms or 0)
            note_clock(self._env, before)
            await self._publisher.request_all(ClockAdvanced())
            return
        if rule.action == "kill":
            await self._processes.kill(rule.process or "", f"fault rule {request.rule_id}")
            return
        await self._processes.pause(rule.process or "", rule.pause_ms or 0)


def _affected(change: Change) -> tuple[str | None, str | None]:
    """Topic and resource of a change, as rules select them; None if there is none.

    A change of anything else affects one unnamed thing, so that a rule without selectors matches
    every update.
    """
    match change:
        case TopicCreated(topic):
            return topic.name, None
        case TopicDeleted(name) | PartitionsAdded(name):
            return name, None
        case ConfigChanged(kind, name):
            return (name if kind == TOPIC else None), name
        case _:
            return None, None


class SavedRules(NamedTuple):
    """The rules of the former controller of this broker."""

    rules: tuple[SavedRule, ...] = ()
    last_number: int = 0
    """The last id that was a number."""


class FaultStore:
    """The rules of one start of a broker."""

    def __init__(self, directory: Path, run: int) -> None:
        """``run`` identifies the start: rules of others are ignored."""
        self._rules_path = directory / FAULT_RULES_FILE
        self._counts_path = directory / FAULT_COUNTS_FILE
        self._directory = directory
        self._run = run
        self._counts: FaultCounts | None = None
        self._slots: dict[str, int] = {}
        self._free_slots = list(range(RULES_MAX))[::-1]
        self._lines: dict[str, str] = {}
        self._last_number = 0
        self._line_count = 0
        """Lines of the file after the first one; 0 if it must be rewritten."""

    def load(self) -> SavedRules:
        """The rules of a former controller of this start; none if there was none."""
        try:
            head, *lines = self._rules_path.read_text().splitlines()
            found = json.loads(head)
            if found["run"] != self._run:
                return SavedRules()
            self._last_number = found["last_number"]
            for line in lines:
                self._replay(json.loads(line), line)
            counts = self._open_counts()
            rules = tuple(_restored(json.loads(line), counts) for line in self._lines.values())
        except FileNotFoundError:
            return SavedRules()
        except (OSError, ValueError, LookupError, TypeError, InvalidJson) as error:
            _log.warning("the fault rules of the killed controller are lost", reason=error)
            self._forget()
            return SavedRules()
        self._line_count = len(lines)
        return SavedRules(rules, self._last_number)

    def _replay(self, change: dict[str, Any], line: str) -> None:
        """Follow a line of the file."""
        removed = change.get("removed")
        if removed is not None:
            self._free_slots.append(self._slots.pop(removed))
            del self._lines[removed]
            return
        rule_id, slot = change["id"], change["slot"]
        self._free_slots.remove(slot)
        self._slots[rule_id], self._lines[rule_id] = slot, line
        self._last_number = change["number"]

    def _open_counts(self) -> FaultCounts:
        if self._counts is None:
            self._counts = FaultCounts(self._directory)
        return self._counts

    def add(self, state: RuleState, last_number: int) -> None:
        """Write a rule; ``last_number`` is the last id that was a number."""
        rule_id = state.active.id
        try:
            counts = self._open_counts()
            slot = self._free_slots[-1]
            saved = {
                "id": rule_id,
                "added": state.added,
                "slot": slot,
                "number": last_number,
                "rule": _given(state.active.rule),
            }
            counts.write(slot, state.counts)
            self._slots[rule_id] = self._free_slots.pop()
            self._lines[rule_id] = json.dumps(saved)
            self._last_number = last_number
            self._append(self._lines[rule_id])
        except OSError as error:
            _log.warning("fault rules will not survive the controller", reason=error)

    def remove(self, rule_id: str) -> None:
        """Forget a rule; without any the files are removed."""
        slot = self._slots.pop(rule_id, None)
        if slot is None:
            return
        self._free_slots.append(slot)
        del self._lines[rule_id]
        if not self._lines:
            self.clear()
            return
        try:
            self._append(json.dumps({"removed": rule_id}))
        except OSError as error:
            _log.warning("fault rules will not survive the controller", reason=error)

    def clear(self) -> None:
        """Forget all rules, and remove the files."""
        self._forget()
        try:
            for path in (self._rules_path, self._counts_path):
                path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("fault rules will not survive the controller", reason=error)
        if self._counts is not None:
            self._counts.close()
            self._counts = None

    def _forget(self) -> None:
        self._slots, self._lines, self._line_count = {}, {}, 0
        self._free_slots = list(range(RULES_MAX))[::-1]

    def _append(self, line: str) -> None:
        """Write the last change; all rules if the file has more lines than it needs."""
        is_new = not 0 < self._line_count < 2 * len(self._lines) + SURPLUS_LINES_MAX
        self._line_count, lines_before = 0, self._line_count
        if is_new:
            head = json.dumps({"run": self._run, "last_number": self._last_number})
            temporary = self._rules_path.with_suffix(".new")
            temporary.write_text("\n".join([head, *self._lines.values(), ""]))
            os.replace(temporary, self._rules_path)
            self._line_count = len(self._lines)
            return
        with self._rules_path.open("a") as file:
            file.write(f"{line}\n")
        self._line_count = lines_before + 1

    def count(self, state: RuleState) -> None:
        """Keep the counts of a rule that this process counts."""
        slot = self.slot(state.active.id)
        if self._counts is not None and slot >= 0 and not _is_counted_by_workers(state):
            self._counts.write(slot, state.counts)

    def refresh(self, state: RuleState) -> None:
        """Read the counts of a rule that workers count."""
        slot = self.slot(state.active.id)
        if self._counts is not None and slot >= 0 and _is_counted_by_workers(state):
            state.matches, state.hits, *_ = self._counts.read(slot)

    def slot(self, rule_id: str) -> int:
        """The place of a rule's counts; negative if they are not kept."""
        return self._slots.get(rule_id, -1)


def _is_counted_by_workers(state: RuleState) -> bool:
    return state.active.rule.action in STORAGE_ACTIONS


def _given(rule: FaultRule) -> dict[str, Any]:
    return {name: value for name, value in to_json(rule).items() if value is not None}


def _restored(saved: dict[str, Any], counts: FaultCounts) -> SavedRule:
    rule = parse(FaultRule, saved["rule"])
    return SavedRule(saved["id"], rule, saved["added"], counts.read(saved["slot"]))

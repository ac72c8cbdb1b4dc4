"""The fault rules of a broker or a proxy, those that wait for them, and the files that keep them.

Owns the one rulebook (what the control API adds and removes, and which requests wait until a rule
has fired or is released), and two files of a broker's data directory: the rules, to which each
change is appended, and the counts, in memory that the kernel keeps when a process dies. It must
never know how a fault is carried out, or in which processes. Invariants: every match is counted
here, and what waits is woken by each change; a decision of workers reads and writes the counts of a
rule under a lock, so they are exact over all processes. Rules of an earlier start of the broker are
not restored, and a count is as new as the last decision. Nothing is synced: a crash of the machine
ends the broker and its rules.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from minibroker.broker.log.data_directory import FAULT_COUNTS_FILE, FAULT_RULES_FILE
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import CONTROLLER
from minibroker.lab.errors import ApiError, NotFound
from minibroker.lab.faults.fault_rule import (
    RULES_MAX,
    ActiveRule,
    FaultHold,
    FaultRule,
    FaultView,
    ServedVersions,
)
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.rulebook import (
    Firing,
    Rulebook,
    RuleCounts,
    RuleState,
    fires_at,
    is_in_time,
)
from minibroker.lab.schema import InvalidJson, parse
from minibroker.runtime.system import reserve_space

SURPLUS_LINES_MAX: Final = 100
"""Lines of the file about rules that were removed, if there are fewer than twice as many rules."""

_COUNTS: Final = len(RuleCounts._fields)
_BYTES: Final = RULES_MAX * _COUNTS * 8
_MODE: Final = 0o600

_log = EventLog(CONTROLLER)


class FaultCounts:
    """The file of a data directory, created if it does not exist. Raises ``OSError``."""

    def __init__(self, directory: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(directory / FAULT_COUNTS_FILE, flags, _MODE)
        try:
            reserve_space(self._fd, _BYTES)  # A full disk must not fail a store.
            self._memory = mmap.mmap(self._fd, _BYTES)
            self._words = memoryview(self._memory).cast("Q")
        except OSError:
            os.close(self._fd)
            raise

    def read(self, slot: int) -> RuleCounts:
        return RuleCounts(*self._words[slot * _COUNTS : (slot + 1) * _COUNTS])

    def write(self, slot: int, counts: RuleCounts) -> None:
        """Replace the counts of a rule that only this process counts.

        Word by word, because ``struct`` clears what it writes first, and a kill in between would
        reset the counts.
        """
        for at, count in enumerate(counts, slot * _COUNTS):
            self._words[at] = count

    def decide(self, active: ActiveRule, now: float) -> bool:
        """Count a match of a rule that several processes count; return whether it fires."""
        if not is_in_time(active, now):
            return False
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            counts = self.read(active.slot)
            matches = counts.matches + 1
            fires = fires_at(active.rule, matches)
            self.write(active.slot, counts._replace(matches=matches, hits=counts.hits + fires))
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return fires

    def close(self) -> None:
        """Unmap and close the file."""
        self._words.release()
        self._memory.close()
        os.close(self._fd)


class SavedRules(NamedTuple):
    """The rules of the former controller of this broker."""

    rules: tuple[RuleState, ...] = ()
    last_number: int = 0
    """The last id that was a number."""


class RuleStore:
    """Where rules and counts survive a restart of their process; this one keeps nothing."""

    def load(self) -> SavedRules:
        """The rules that were kept."""
        return SavedRules()

    def add(self, state: RuleState, last_number: int) -> None:
        """Keep a rule; ``last_number`` is the last id that was a number."""

    def remove(self, rule_id: str) -> None:
        """Forget a rule."""

    def clear(self) -> None:
        """Forget all rules."""

    def count(self, state: RuleState, counted: str = "") -> None:
        """Keep the counts of a rule, and of one of those that it counts separately."""

    def refresh(self, state: RuleState) -> None:
        """Read the counts of a rule that other processes count."""


class FaultStore(RuleStore):
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
        self._counted: dict[str, dict[str, int]] = {}
        """Matches of what rules count separately: each rule's own counters."""
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
            rules = tuple(
                _restored(json.loads(line), counts, self._counted.get(rule_id, {}))
                for rule_id, line in self._lines.items()
            )
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
            self._counted.pop(removed, None)
            return
        counted = change.get("counted")
        if counted is not None:
            self._counted.setdefault(change["id"], {}).update(counted)
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
        """Write a rule, and let it know its slot; ``last_number`` is the last id that was one."""
        rule_id = state.active.id
        try:
            counts = self._open_counts()
            slot = self._free_slots[-1]
            saved = {
                "id": rule_id,
                "added": state.active.added,
                "slot": slot,
                "number": last_number,
                "rule": state.active.rule.given,
            }
            counts.write(slot, state.counts)
            self._slots[rule_id] = self._free_slots.pop()
            state.active = state.active._replace(slot=slot)
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
        self._counted.pop(rule_id, None)
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
        self._slots, self._lines, self._counted, self._line_count = {}, {}, {}, 0
        self._free_slots = list(range(RULES_MAX))[::-1]

    def _append(self, line: str) -> None:
        """Write the last change; all rules if the file has more lines than it needs."""
        needed = len(self._lines) + sum(map(len, self._counted.values()))
        is_new = not 0 < self._line_count < 2 * needed + SURPLUS_LINES_MAX
        self._line_count, lines_before = 0, self._line_count
        if is_new:
            head = json.dumps({"run": self._run, "last_number": self._last_number})
            temporary = self._rules_path.with_suffix(".new")
            counted = [_counted_line(*each) for each in self._counted.items()]
            temporary.write_text("\n".join([head, *self._lines.values(), *counted, ""]))
            os.replace(temporary, self._rules_path)
            self._line_count = len(self._lines) + len(counted)
            return
        with self._rules_path.open("a") as file:
            file.write(f"{line}\n")
        self._line_count = lines_before + 1

    def count(self, state: RuleState, counted: str = "") -> None:
        """Keep the counts of a rule that this process counts."""
        slot = state.active.slot
        if self._counts is None or slot < 0 or is_counted_by_workers(state):
            return
        has_matched = self._counts.read(slot).matches != state.matches
        self._counts.write(slot, state.counts)
        if state.active.rule.per is None or not has_matched:
            return
        self._counted[state.active.id] = state.counted
        try:
            matches = {counted: state.matches_of(counted)}
            self._append(_counted_line(state.active.id, matches))
        except OSError as error:
            _log.warning("fault rules will not survive the controller", reason=error)

    def refresh(self, state: RuleState) -> None:
        """Read the counts of a rule that workers count."""
        slot = state.active.slot
        if self._counts is not None and slot >= 0 and is_counted_by_workers(state):
            state.matches, state.hits, *_ = self._counts.read(slot)


def is_counted_by_workers(state: RuleState) -> bool:
    """Whether workers count a rule, at each append."""
    return state.active.rule.action.matches == "appends"


def _counted_line(rule_id: str, counted: Mapping[str, int]) -> str:
    return json.dumps({"id": rule_id, "counted": counted})


def _restored(saved: dict[str, Any], counts: FaultCounts, counted: Mapping[str, int]) -> RuleState:
    rule, slot = parse(FaultRule, saved["rule"]), saved["slot"]
    active = ActiveRule(saved["id"], rule, slot, saved["added"])
    return RuleState(active, counts.read(slot), counted)


TIMED_OUT_STATUS: Final = 408

POLL_S: Final = 0.02
"""Pause, in real time, between looks at counts of other processes."""


class FaultRegister:
    """The rulebook, and events when it changes."""

    def __init__(
        self,
        served: ServedVersions,
        now: Callable[[], float],
        sleep_real: Callable[[float], Awaitable[None]],
        store: RuleStore | None = None,
    ) -> None:
        """``served`` are the versions of APIs that requests may have.

        ``now`` is the clock of the rules; ``sleep_real`` waits for real seconds.
        """
        self._store = store or RuleStore()
        self.book: Final = Rulebook(served)
        self.book.restore(*self._store.load())
        self._now = now
        self._sleep_real = sleep_real
        self._changed = trio.Event()

    # The control API --------------------------------------------------------------------------

    def views(self) -> tuple[FaultView, ...]:
        """All rules."""
        now = self._now()
        for state in self.book.states():
            self._store.refresh(state)
        return tuple(state.view(now) for state in self.book.states())

    def view(self, rule_id: str) -> FaultView:
        """One rule. Raises ``NotFound``."""
        return self._state(rule_id).view(self._now())

    def add(self, rule: FaultRule) -> RuleState:
        """Add a rule. Raises ``InvalidJson`` or ``Conflict``."""
        state = self.book.add(rule, self._now())
        self._store.add(state, self.book.last_number)
        return state

    def remove(self, rule_id: str) -> None:
        """Remove a rule, and release what it holds. Raises ``NotFound``."""
        self._release(self._state(rule_id))
        self.book.remove(rule_id)
        self._store.remove(rule_id)

    def clear(self) -> None:
        """Remove all rules, and release what they hold."""
        for state in self.book.states():
            self._release(state)
        self.book.clear()
        self._store.clear()

    def release(self, rule_id: str) -> int:
        """Release what a rule holds; return how many that were. Raises ``NotFound``."""
        state = self._state(rule_id)
        held = state.held
        self._release(state)
        return held

    async def wait(self, rule_id: str, hits: int, timeout_ms: int) -> FaultView:
        """Wait for hits of a rule, for real time at most.

        Raises ``NotFound`` if the rule is removed, and ``ApiError`` after the time.
        """
        state = self._state(rule_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_after, timeout_ms, nursery.cancel_scope)
            while state.reached < hits and self.book.find(rule_id) is state:
                if is_counted_by_workers(state):
                    await self._sleep_real(POLL_S)
                    self._store.refresh(state)
                else:
                    await self._changed.wait()
            nursery.cancel_scope.cancel()
        if state.reached >= hits:
            return state.view(self._now())
        self._state(rule_id)
        raise ApiError(
            "REQUEST_TIMED_OUT",
            f"rule {rule_id} has fired {state.reached} of {hits} times within {timeout_ms} ms",
            f"Its selectors have matched {state.matches} times.",
            status=TIMED_OUT_STATUS,
        )

    async def _cancel_after(self, timeout_ms: int, scope: trio.CancelScope) -> None:
        await self._sleep_real(timeout_ms / 1000)
        scope.cancel()

    def _state(self, rule_id: str) -> RuleState:
        state = self.book.find(rule_id)
        if state is None:
            raise NotFound(
                "NO_SUCH_FAULT", f"there is no fault rule {rule_id!r}", "GET /v1/faults lists all."
            )
        self._store.refresh(state)
        return state

    # Requests ---------------------------------------------------------------------------------

    def decide(self, candidates: Sequence[Candidate]) -> tuple[Firing, ...]:
        """The rules that fire of those that match."""
        states = [self.book.find(each.rule_id) for each in candidates]
        for state in states:
            self._refresh_before(state)
        fired = self.book.decide(candidates, self._now())
        for candidate, state in zip(candidates, states, strict=True):
            if state is not None:
                self._store.count(state, candidate.counted)
        if fired:
            self._wake()
        return fired

    def _refresh_before(self, state: RuleState | None) -> None:
        """Read the counts of a rule that must have fired before, which workers may count."""
        if state is not None and state.active.rule.after_rule is not None:
            first = self.book.find(state.active.rule.after_rule)
            if first is not None:
                self._store.refresh(first)

    async def hold(self, rule_id: str, releases: int, what: FaultHold, again: bool = False) -> None:
        """Return when a rule has been released more often than that, or is removed.

        With ``again`` it was held already when the rules were kept.
        """
        state = self.book.find(rule_id)
        if state is None:
            return
        number = state.hold(what, again=again)
        self._store.count(state)
        self._wake()
        try:
            while state.releases <= releases:
                await self._changed.wait()
        finally:
            state.forget_hold(number)

    def overtaken(self, rule_id: str) -> None:
        """Release the first match of a pair, because the second one was answered."""
        if (state := self.book.find(rule_id)) is not None:
            state.release_pair()
            self._store.count(state)
            self._wake()

    def _release(self, state: RuleState) -> None:
        state.release()
        self._store.count(state)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

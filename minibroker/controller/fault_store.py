"""The fault rules and their counts in files, so that they survive a killed controller.

Owns two files of the data directory: the rules, written when one is added or removed, and the
counts, in memory that the kernel keeps when the process dies. It must never know what a rule does.
Invariant: rules of an earlier start of the broker are not restored, and a count is as new as the
last decision. Nothing is synced: a crash of the machine ends the broker and its rules.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from minibroker.control.fault_shapes import RULES_MAX, FaultRule
from minibroker.control.schema import InvalidJson, parse, to_json
from minibroker.faults.actions import STORAGE_ACTIONS
from minibroker.faults.rulebook import RuleState, SavedRule
from minibroker.observability.log import EventLog
from minibroker.process.environment import CONTROLLER
from minibroker.process.fault_counts import FaultCounts
from minibroker.storage.data_directory import FAULT_COUNTS_FILE, FAULT_RULES_FILE

_log = EventLog(CONTROLLER)


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
        self._lines: dict[str, str] = {}

    def load(self) -> SavedRules:
        """The rules of a former controller of this start; none if there was none."""
        try:
            head, *lines = self._rules_path.read_text().splitlines()
            found = json.loads(head)
            if found["run"] != self._run:
                return SavedRules()
            counts = self._open_counts()
            saved = [json.loads(line) for line in lines]
            rules = tuple(_restored(each, counts) for each in saved)
            self._slots = {each["id"]: each["slot"] for each in saved}
            self._lines = {each["id"]: line for each, line in zip(saved, lines, strict=True)}
        except FileNotFoundError:
            return SavedRules()
        except (OSError, ValueError, LookupError, TypeError, InvalidJson) as error:
            _log.warning("the fault rules of the killed controller are lost", reason=error)
            return SavedRules()
        return SavedRules(rules, found["last_number"])

    def _open_counts(self) -> FaultCounts:
        if self._counts is None:
            self._counts = FaultCounts(self._directory)
        return self._counts

    def save(self, states: Iterable[RuleState], last_number: int) -> None:
        """Write all rules; without any the files are removed."""
        states = list(states)
        try:
            self._save(states, last_number) if states else self._remove()
        except OSError as error:
            _log.warning("fault rules will not survive the controller", reason=error)

    def _save(self, states: list[RuleState], last_number: int) -> None:
        self._open_counts()
        ids = {state.active.id for state in states}
        for rule_id in self._slots.keys() - ids:
            del self._slots[rule_id], self._lines[rule_id]
        for state in states:
            if state.active.id not in self._slots:
                self._add(state)
        head = json.dumps({"run": self._run, "last_number": last_number})
        lines = [self._lines[state.active.id] for state in states]
        temporary = self._rules_path.with_suffix(".new")
        temporary.write_text("\n".join([head, *lines]))
        os.replace(temporary, self._rules_path)

    def _add(self, state: RuleState) -> None:
        used = set(self._slots.values())
        slot = next(each for each in range(RULES_MAX) if each not in used)
        saved = {
            "id": state.active.id,
            "added": state.added,
            "slot": slot,
            "rule": _given(state.active.rule),
        }
        self._slots[state.active.id], self._lines[state.active.id] = slot, json.dumps(saved)
        self._open_counts().write(slot, state.counts)

    def _remove(self) -> None:
        self._slots, self._lines = {}, {}
        for path in (self._rules_path, self._counts_path):
            path.unlink(missing_ok=True)
        if self._counts is not None:
            self._counts.close()
            self._counts = None

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

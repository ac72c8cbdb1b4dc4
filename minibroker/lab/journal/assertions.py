"""Assertions over the journal: what happened, in which order, and what did not.

Owns their definitions and their explanations. It must never know how entries are collected.
Invariant: an assertion that something did not happen never holds if entries are missing of which
one may have been the entry in question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from minibroker.lab.journal.entries import JournalEntry, lost_entries
from minibroker.lab.journal.filters import EntryFilter


class AssertionResult(NamedTuple):
    """Whether an assertion holds, why, and the entries that show it."""

    holds: bool
    text: str
    entries: tuple[JournalEntry, ...]


def happened(
    entries: Iterable[JournalEntry], wanted: EntryFilter, times: int = 1
) -> AssertionResult:
    """Assert that at least so many entries match."""
    found: list[JournalEntry] = []
    losses: list[JournalEntry] = []
    for entry in entries:
        if wanted.matches(entry):
            found.append(entry)
        elif wanted.could_match_lost(entry):
            losses.append(entry)
    holds = len(found) >= times
    text = f"{len(found)} entries match, at least {times} are wanted"
    if not holds:
        text += _unknown(losses, wanted.after)
    return AssertionResult(holds, text, tuple(found))


def happened_in_order(
    entries: Iterable[JournalEntry], wanted: Sequence[EntryFilter]
) -> AssertionResult:
    """Assert that there is an entry for each filter, each after the one before it."""
    found: list[JournalEntry] = []
    losses: list[JournalEntry] = []
    for entry in entries:
        if len(found) == len(wanted):
            break
        if wanted[len(found)].matches(entry):
            found.append(entry)
        elif wanted[len(found)].could_match_lost(entry):
            losses.append(entry)
    if len(found) == len(wanted):
        return AssertionResult(True, "all happened in this order", tuple(found))
    since = f"after entry {found[-1].sequence}" if found else "at all"
    text = f"step {len(found) + 1} of {len(wanted)} did not happen {since}"
    return AssertionResult(False, text + _unknown(losses, wanted[0].after), tuple(found))


def _unknown(losses: Sequence[JournalEntry], after: int) -> str:
    if not losses:
        return ""
    return f"; {_lost_after(losses, after)} entries were lost, which may have matched"


def did_not_happen_before(
    entries: Iterable[JournalEntry],
    unwanted: EntryFilter,
    clock_ms: float | None = None,
    *,
    pending: Mapping[str, int] | None = None,
) -> AssertionResult:
    """Assert that no entry matches, or none before a time of the broker's clock.

    ``pending`` has the numbers of entries that processes have recorded but not handed over.
    """
    losses: list[JournalEntry] = []
    found: list[JournalEntry] = []
    for entry in entries:
        if unwanted.matches(entry):
            if clock_ms is None or entry.clock_ms < clock_ms:
                found.append(entry)
        elif unwanted.could_match_lost(entry) and _began_before(entry, clock_ms):
            losses.append(entry)
    if found:
        since = "" if clock_ms is None else f" {clock_ms - found[0].clock_ms:g} ms too early"
        text = f"entry {found[0].sequence} matches{since}"
        return AssertionResult(False, text, tuple(found))
    if losses:
        lost, last = _lost_after(losses, unwanted.after), losses[-1].sequence
        text = f"{lost} entries up to {last} were lost, so it is unknown whether one matched"
        return AssertionResult(False, text, tuple(losses))
    for role, entries_of_role in (pending or {}).items():
        if unwanted.role in {None, role}:
            text = (
                f"{role} does not respond and has {entries_of_role} entries, so it is unknown "
                "whether one matches"
            )
            return AssertionResult(False, text, ())
    return AssertionResult(True, "no entry matches", ())


def _began_before(loss: JournalEntry, clock_ms: float | None) -> bool:
    since_ms = loss.details["since_ms"]
    return clock_ms is None or (isinstance(since_ms, float | int) and since_ms < clock_ms)


def _lost_after(losses: Sequence[JournalEntry], sequence: int) -> int:
    return sum(min(lost_entries(loss), loss.sequence - sequence) for loss in losses)

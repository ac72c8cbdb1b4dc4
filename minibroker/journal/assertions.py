"""Assertions over the journal: what happened, in which order, and what did not.

Owns their definitions and their explanations. It must never know how entries are collected.
Invariant: an assertion that something did not happen never holds if entries were dropped, because
one of them may have been the entry in question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from minibroker.journal.entries import JournalEntry
from minibroker.journal.filters import EntryFilter


class AssertionResult(NamedTuple):
    """Whether an assertion holds, why, and the entries that show it."""

    holds: bool
    text: str
    entries: tuple[JournalEntry, ...]


def happened(
    entries: Iterable[JournalEntry], wanted: EntryFilter, times: int = 1
) -> AssertionResult:
    """Assert that at least so many entries match."""
    found = tuple(entry for entry in entries if wanted.matches(entry))
    return AssertionResult(
        len(found) >= times, f"{len(found)} entries match, at least {times} are wanted", found
    )


def happened_in_order(
    entries: Iterable[JournalEntry], wanted: Sequence[EntryFilter]
) -> AssertionResult:
    """Assert that there is an entry for each filter, each after the one before it."""
    found: list[JournalEntry] = []
    for entry in entries:
        if len(found) == len(wanted):
            break
        if wanted[len(found)].matches(entry):
            found.append(entry)
    if len(found) == len(wanted):
        return AssertionResult(True, "all happened in this order", tuple(found))
    since = f"after entry {found[-1].sequence}" if found else "at all"
    text = f"step {len(found) + 1} of {len(wanted)} did not happen {since}"
    return AssertionResult(False, text, tuple(found))


def did_not_happen_before(
    entries: Iterable[JournalEntry],
    unwanted: EntryFilter,
    clock_ms: float | None = None,
    *,
    dropped: int = 0,
) -> AssertionResult:
    """Assert that no entry matches, or none before a time of the broker's clock.

    ``dropped`` is the number of entries that are missing at the beginning.
    """
    found = tuple(
        entry
        for entry in entries
        if (clock_ms is None or entry.clock_ms < clock_ms) and unwanted.matches(entry)
    )
    if found:
        since = "" if clock_ms is None else f" {clock_ms - found[0].clock_ms:g} ms too early"
        return AssertionResult(False, f"entry {found[0].sequence} matches{since}", found)
    if dropped:
        text = f"{dropped} older entries were dropped, so it is unknown whether one matched"
        return AssertionResult(False, text, ())
    return AssertionResult(True, "no entry matches", ())

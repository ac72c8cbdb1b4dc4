"""Processes share the counts of entries."""

from __future__ import annotations

import os

from minibroker.broker.process.journal_counts import JournalCounts


def test_roles_that_have_more_than_they_handed_over_are_pending() -> None:
    counts = JournalCounts(["a", "b", "c"])
    counts.word("a")[0] = 5
    counts.word("b")[0] = 2
    counts.hand_over("a", 3, 17)
    counts.hand_over("b", 2)
    assert counts.pending() == {"a": 2}
    assert (counts.recorded("a"), counts.handed_over("a"), counts.chunk("a")) == (5, 3, 17)
    assert (counts.total(), counts.chunk("b")) == (5, 0)


def test_state_of_the_journal_is_kept() -> None:
    counts = JournalCounts(["a"])
    assert (counts.is_on, counts.cleared) == (False, 0)
    counts.is_on, counts.cleared = True, 9
    assert (counts.is_on, counts.cleared) == (True, 9)
    counts.is_on = False
    assert not counts.is_on


def test_counts_of_a_process_that_has_ended_remain() -> None:
    counts = JournalCounts(["a", "b"])
    pid = os.fork()
    if not pid:
        counts.word("b")[0] += 7
        os._exit(0)
    os.waitpid(pid, 0)
    assert counts.pending() == {"b": 7}

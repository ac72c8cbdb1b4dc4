"""Rules are added, counted, awaited, released and removed in one place."""

from __future__ import annotations

import errno
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.log.data_directory import FAULT_COUNTS_FILE, FAULT_RULES_FILE
from minibroker.lab.errors import ApiError, Conflict, NotFound
from minibroker.lab.faults.actions import Error, FailAppend, Hold, Observe
from minibroker.lab.faults.fault_rule import ActiveRule, FaultHold, FaultRule
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.register import (
    SURPLUS_LINES_MAX,
    FaultCounts,
    FaultRegister,
    FaultStore,
    SavedRules,
)
from minibroker.lab.faults.rulebook import NO_COUNTS, Rulebook, RuleCounts, RuleState
from minibroker.lab.schema import InvalidJson, parse
from tests.lab.faults.messages import SERVED
from tests.lab.faults.strategies import rules

OBSERVE = FaultRule(Observe(), name="seen")
HOLD = FaultRule(Hold(), name="held")
WHAT = FaultHold("processor-0", "FETCH", "client", 7, topic="t")
SEEN = [Candidate("seen", None)]


def made() -> FaultRegister:
    return FaultRegister(SERVED, trio.current_time, trio.sleep)


async def test_rules_keep_their_order_and_are_found_by_id() -> None:
    register = made()
    register.add(HOLD)
    register.add(OBSERVE)
    assert [each.id for each in register.book.active()] == ["held", "seen"]
    assert [each.id for each in register.views()] == ["held", "seen"]
    assert register.view("seen").rule["action"] == "observe"
    assert register.book.find("other") is None
    with pytest.raises(Conflict):
        register.add(HOLD)
    with pytest.raises(InvalidJson):
        register.add(FaultRule(Error("NO_SUCH_ERROR")))


async def test_wait_ends_with_a_hit_or_at_the_timeout(autojump_clock: MockClock) -> None:
    register = made()
    register.add(OBSERVE)
    hits: list[int] = []

    async def wait() -> None:
        hits.append((await register.wait("seen", 1, 60_000)).hits)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert [each.rule_id for each in register.decide(SEEN)] == ["seen"]
    assert hits == [1]
    with pytest.raises(ApiError, match="fired 1 of 2 times within 50 ms"):
        await register.wait("seen", 2, 50)


@pytest.mark.parametrize("by", ["release", "remove", "clear"])
async def test_hold_ends_when_the_rule_is_released_or_removed(by: str) -> None:
    register = made()
    register.add(HOLD)
    (fired,) = register.decide([Candidate("held", None)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(register.hold, fired.rule_id, fired.releases, WHAT)
        await wait_all_tasks_blocked()
        view = register.view("held")
        assert (view.held, view.holds) == (1, (WHAT,))
        if by == "release":
            assert register.release("held") == 1
        elif by == "remove":
            register.remove("held")
        else:
            register.clear()
    await register.hold("removed", 0, WHAT)


async def test_view_has_the_names_of_a_namespace() -> None:
    register = made()
    rule = {"action": "hold", "api": "Produce", "name": "held", "topic": "t", "namespace": "ns"}
    register.add(parse(FaultRule, rule))
    (fired,) = register.decide([Candidate("held", None)])
    async with trio.open_nursery() as nursery:
        held = FaultHold("worker-0", topic="ns.t")
        nursery.start_soon(register.hold, fired.rule_id, fired.releases, held)
        await wait_all_tasks_blocked()
        assert register.view("held").holds == (FaultHold("worker-0", topic="t"),)
        register.clear()


async def test_removed_rule_is_unknown_and_does_not_fire() -> None:
    register = made()
    register.add(OBSERVE)
    register.remove("seen")
    assert register.decide(SEEN) == ()
    with pytest.raises(NotFound):
        register.view("seen")
    with pytest.raises(NotFound):
        await register.wait("seen", 1, 0)


RUN = 7


def added(store: FaultStore, book: Rulebook, rule: FaultRule, now: float = 0.0) -> RuleState:
    """Add a rule to both."""
    state = book.add(rule, now)
    store.add(state, book.last_number)
    return state


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(rules(), st.integers(0, 3)), max_size=4), st.data())
def test_any_rules_are_read_back_with_their_counts(
    tmp_path: Path, drawn: list[tuple[dict[str, Any], int]], data: st.DataObject
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    store, book = FaultStore(folder, RUN), Rulebook(SERVED)
    for rule, matches in drawn:
        state = added(store, book, parse(FaultRule, rule), 5.5)
        is_shared = state.active.rule.action.matches == "appends"
        for _ in range(0 if is_shared else matches):
            book.decide([Candidate(state.active.id, None)], 5.5)
            store.count(state)
        if data.draw(st.booleans()):
            rule_id = data.draw(st.sampled_from([each.id for each in book.active()]))
            book.remove(rule_id)
            store.remove(rule_id)
    saved = FaultStore(folder, RUN).load()
    restored = Rulebook(SERVED)
    restored.restore(*saved)
    assert [(each.active, each.counts) for each in restored.states()] == [
        (each.active, each.counts) for each in book.states()
    ]
    if saved.rules:
        assert restored.last_number == book.last_number
    assert FaultStore(folder, RUN + 1).load() == SavedRules()


def test_counts_of_workers_are_read_and_not_overwritten(tmp_path: Path) -> None:
    store, book = FaultStore(tmp_path, RUN), Rulebook(SERVED)
    assert book.add(FaultRule(Observe()), 0.0).active.slot == -1
    state = added(store, book, FaultRule(FailAppend(), first=1))
    counts = FaultCounts(tmp_path)
    assert [counts.decide(state.active, 0.0) for _ in range(3)] == [True, False, False]
    store.count(state)
    store.refresh(state)
    assert (state.matches, state.hits) == (3, 1)


def test_files_are_removed_with_the_last_rule(tmp_path: Path) -> None:
    store, book = FaultStore(tmp_path, RUN), Rulebook(SERVED)
    for remove in (store.clear, partial(store.remove, "2")):
        added(store, book, FaultRule(Observe()))
        assert {path.name for path in tmp_path.iterdir()} == {FAULT_RULES_FILE, FAULT_COUNTS_FILE}
        remove()
        store.remove("none")
        assert list(tmp_path.iterdir()) == []


def test_file_is_written_anew_when_most_of_its_lines_are_about_removed_rules(
    tmp_path: Path,
) -> None:
    store, book = FaultStore(tmp_path, RUN), Rulebook(SERVED)
    added(store, book, FaultRule(Observe(), name="stays"))
    for _ in range(SURPLUS_LINES_MAX):
        state = added(store, book, FaultRule(Observe()))
        book.remove(state.active.id)
        store.remove(state.active.id)
        lines = (tmp_path / FAULT_RULES_FILE).read_text().splitlines()
        assert len(lines) <= SURPLUS_LINES_MAX + 5
    next_store = FaultStore(tmp_path, RUN)
    saved = next_store.load()
    assert ([each.active.id for each in saved.rules], saved.last_number) == (["stays"], 101)
    book.restore(*saved)
    added(next_store, book, FaultRule(Observe()))
    assert [each.active.id for each in FaultStore(tmp_path, RUN).load().rules] == ["stays", "102"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run": 7}\n{"id": 1}'])
def test_damaged_file_is_reported_and_ignored(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FAULT_RULES_FILE).write_text(content)
    assert FaultStore(tmp_path, RUN).load() == SavedRules()
    assert "the fault rules of the killed controller are lost" in caplog.text


def test_rule_that_cannot_be_written_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    store, book = FaultStore(tmp_path, RUN), Rulebook(SERVED)
    state = added(store, book, FaultRule(Observe()))
    store.count(state)
    store.remove(state.active.id)
    assert "fault rules will not survive the controller" in caplog.text


RULE = ActiveRule("1", FaultRule(FailAppend(), first=30, after_ms=1000), slot=999, added=5.0)


def test_rule_fires_exactly_as_often_as_it_says_in_several_files(tmp_path: Path) -> None:
    def match(_: int) -> int:
        counts = FaultCounts(tmp_path)
        fired = sum(counts.decide(RULE, 6.0) for _ in range(20))
        counts.close()
        return fired

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(match, range(4))) == 30
    assert FaultCounts(tmp_path).read(999) == RuleCounts(80, 30, 0, 0)


def test_match_outside_of_the_time_is_not_counted(tmp_path: Path) -> None:
    counts = FaultCounts(tmp_path)
    assert not counts.decide(RULE, 5.5)
    assert counts.read(999) == NO_COUNTS


def test_counts_are_written_and_read_back(tmp_path: Path) -> None:
    first, second = FaultCounts(tmp_path), FaultCounts(tmp_path)
    first.write(3, RuleCounts(4, 3, 2, 1))
    assert second.read(3) == RuleCounts(4, 3, 2, 1)
    assert second.read(2) == NO_COUNTS


def test_full_disk_is_an_error_without_a_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No space"):
        FaultCounts(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / FAULT_COUNTS_FILE).exists()


def test_separate_counts_are_read_back_and_take_no_more_lines_than_they_need(
    tmp_path: Path,
) -> None:
    store, book = FaultStore(tmp_path, RUN), Rulebook(SERVED)
    state = added(store, book, FaultRule(Observe(), first=2, per="client_id"))
    for match in range(10 * SURPLUS_LINES_MAX):
        counted = f"c{match % 3}"
        book.decide([Candidate(state.active.id, None, counted=counted)], 0.0)
        store.count(state, counted)
    assert len((tmp_path / FAULT_RULES_FILE).read_text().splitlines()) <= SURPLUS_LINES_MAX + 10
    (restored,) = FaultStore(tmp_path, RUN).load().rules
    assert [restored.matches_of(each) for each in ("c0", "c1", "c2", "c3")] == [334, 333, 333, 0]
    assert (restored.matches, restored.hits) == (state.matches, state.hits) == (1000, 6)

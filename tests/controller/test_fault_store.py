"""Fault rules and their counts are read back by the next controller of the same start."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibroker.apis.registry import APIS
from minibroker.control.fault_shapes import FaultRule
from minibroker.control.schema import parse
from minibroker.controller.fault_store import FaultStore, SavedRules
from minibroker.faults.actions import STORAGE_ACTIONS
from minibroker.faults.matching import Candidate
from minibroker.faults.rulebook import Rulebook
from minibroker.process.fault_counts import FaultCounts
from minibroker.storage.data_directory import FAULT_COUNTS_FILE, FAULT_RULES_FILE
from tests.faults.strategies import rules

RUN = 7


def kept(store: FaultStore, book: Rulebook) -> None:
    store.save(book.states(), book.last_number)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(rules(), st.integers(0, 3)), max_size=4), st.data())
def test_any_rules_are_read_back_with_their_counts(
    tmp_path: Path, drawn: list[tuple[dict[str, Any], int]], data: st.DataObject
) -> None:
    store, book = FaultStore(tmp_path, RUN), Rulebook(APIS)
    for rule, matches in drawn:
        state = book.add(parse(FaultRule, rule), 5.5)
        kept(store, book)
        is_shared = state.active.rule.action in STORAGE_ACTIONS
        for _ in range(0 if is_shared else matches):
            book.decide([Candidate(state.active.id, None)], 5.5)
            store.count(state)
        if data.draw(st.booleans()):
            book.remove(data.draw(st.sampled_from([each.id for each in book.active()])))
            kept(store, book)
    saved = FaultStore(tmp_path, RUN).load()
    restored = Rulebook(APIS)
    restored.restore(*saved)
    assert [(each.active, each.added, each.counts) for each in restored.states()] == [
        (each.active, each.added, each.counts) for each in book.states()
    ]
    if saved.rules:
        assert restored.last_number == book.last_number
    assert FaultStore(tmp_path, RUN + 1).load() == SavedRules()


def test_counts_of_workers_are_read_and_not_overwritten(tmp_path: Path) -> None:
    store, book = FaultStore(tmp_path, RUN), Rulebook(APIS)
    state = book.add(FaultRule("fail_append", first=1), 0.0)
    assert store.slot(state.active.id) == -1
    kept(store, book)
    shared = state.active._replace(slot=store.slot(state.active.id))
    counts = FaultCounts(tmp_path)
    assert [counts.decide(shared, 0.0) for _ in range(3)] == [True, False, False]
    store.count(state)
    store.refresh(state)
    assert (state.matches, state.hits) == (3, 1)


def test_files_are_removed_with_the_last_rule(tmp_path: Path) -> None:
    store, book = FaultStore(tmp_path, RUN), Rulebook(APIS)
    book.add(FaultRule("observe"), 0.0)
    kept(store, book)
    assert {path.name for path in tmp_path.iterdir()} == {FAULT_RULES_FILE, FAULT_COUNTS_FILE}
    book.clear()
    kept(store, book)
    kept(store, book)
    assert list(tmp_path.iterdir()) == []


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
    store, book = FaultStore(tmp_path, RUN), Rulebook(APIS)
    state = book.add(FaultRule("observe"), 0.0)
    kept(store, book)
    store.count(state)
    assert "fault rules will not survive the controller" in caplog.text

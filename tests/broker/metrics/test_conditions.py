"""Conditions of a process, and their bounds."""

from __future__ import annotations

from minibroker.broker.metrics.conditions import (
    CONDITIONS_MAX,
    TEXT_MAX,
    Condition,
    ConditionKind,
    Conditions,
)

NO_SPACE_ERRNOS = ConditionKind.STORAGE_FAILED
CUT = ConditionKind.RECORDS_TRUNCATED


def test_condition_is_listed_until_cleared() -> None:
    conditions = Conditions()
    assert conditions.set(NO_SPACE_ERRNOS, "/data", "no space", 5)
    assert conditions.all() == (Condition(NO_SPACE_ERRNOS, "/data", "no space", 5),)
    assert conditions.has(NO_SPACE_ERRNOS)
    assert not conditions.has(CUT)
    assert conditions.clear(NO_SPACE_ERRNOS, "/data")
    assert not conditions.clear(NO_SPACE_ERRNOS, "/data")
    assert conditions.all() == ()


def test_condition_set_again_keeps_its_start_time() -> None:
    conditions = Conditions()
    conditions.set(NO_SPACE_ERRNOS, "/data", "0 bytes free", 5)
    assert not conditions.set(NO_SPACE_ERRNOS, "/data", "0 bytes free", 6)
    assert conditions.set(NO_SPACE_ERRNOS, "/data", "9 bytes free", 7)
    assert conditions.all() == (Condition(NO_SPACE_ERRNOS, "/data", "9 bytes free", 5),)


def test_number_of_conditions_and_text_length_are_limited() -> None:
    conditions = Conditions()
    for number in range(CONDITIONS_MAX + 1):
        assert conditions.set(CUT, str(number), "x" * 1000, 1) == (number < CONDITIONS_MAX)
    assert len(conditions.all()) == CONDITIONS_MAX
    assert {len(condition.text) for condition in conditions.all()} == {TEXT_MAX}


def test_conditions_are_counted_by_kind() -> None:
    conditions = Conditions()
    for kind, subject in ((CUT, "a"), (CUT, "b"), (NO_SPACE_ERRNOS, "c")):
        conditions.set(kind, subject, "", 1)
    assert conditions.counts() == {CUT: 2, NO_SPACE_ERRNOS: 1}

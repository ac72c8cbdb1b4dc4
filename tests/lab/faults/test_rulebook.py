"""Rules fire when they should, are counted exactly, and leave entities to earlier ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.errors import Conflict
from minibroker.lab.faults.actions import Error, Observe, Reorder
from minibroker.lab.faults.fault_rule import COUNTERS_MAX, RULES_MAX, FaultRule
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.rulebook import (
    Rulebook,
    fires_at,
)
from minibroker.lab.schema import InvalidJson, parse
from tests.lab.faults.messages import SERVED
from tests.lab.faults.strategies import rules

OBSERVE = FaultRule(Observe())
ERROR = FaultRule(Error(error="NOT_COORDINATOR"))


def book(*rules_: FaultRule) -> Rulebook:
    made = Rulebook(SERVED)
    for rule in rules_:
        made.add(rule, 0.0)
    return made


def fired(made: Rulebook, *candidates: Candidate, now: float = 0.0) -> list[str]:
    asked = candidates or tuple(Candidate(each.id, None) for each in made.active())
    return [each.rule_id for each in made.decide(asked, now)]


@given(rules(), st.integers(1, 12))
def test_any_rule_fires_as_often_as_it_says(drawn: dict[str, Any], matches: int) -> None:
    rule = parse(FaultRule, drawn)
    made = book(rule)
    hits = sum(bool(fired(made)) for _ in range(matches))
    (state,) = made.states()
    assert (state.matches, state.hits) == (matches, hits)
    if rule.first is not None:
        assert hits == min(rule.first, matches)
    elif rule.nth is not None:
        assert hits == (rule.nth <= matches)
    elif rule.every is not None:
        assert hits == matches // rule.every
    elif rule.probability is None:
        assert hits == matches
    elif rule.probability in (0, 1):
        assert hits == rule.probability * matches


def test_every_second_match_of_a_reorder_overtakes_the_one_before() -> None:
    made = book(FaultRule(Reorder()))
    found = [made.decide([Candidate("1", None)], 0.0)[0][2:4] for _ in range(5)]
    assert found == [(0, False), (0, True), (1, False), (1, True), (2, False)]


def test_each_pair_of_a_reorder_is_released_once() -> None:
    made = book(FaultRule(Reorder()))
    (state,) = made.states()
    for _ in range(3):
        made.decide([Candidate("1", None)], 0.0)
    state.release_pair()
    assert state.releases == 1  # The third match still waits for a fourth one.
    state.release()
    made.decide([Candidate("1", None)], 0.0)
    state.release_pair()
    assert state.releases == 2  # It was released by hand already.


@given(st.floats(0.1, 0.9), st.integers(0, 2**53))
def test_probability_depends_on_seed_only(probability: float, seed: int) -> None:
    rule = FaultRule(Observe(), probability=probability, seed=seed)
    first = [fires_at(rule, match) for match in range(1, 1001)]
    assert first == [fires_at(rule, match) for match in range(1, 1001)]
    assert abs(sum(first) / 1000 - probability) < 0.1


def test_rule_matches_within_its_time_only() -> None:
    made = Rulebook(SERVED)
    made.add(FaultRule(Observe(), after_ms=1000, until_ms=2000), 10.0)
    assert [bool(fired(made, now=now)) for now in (10.0, 10.9, 11.0, 11.9, 12.0)] == [
        False,
        False,
        True,
        True,
        False,
    ]
    (state,) = made.states()
    assert (state.matches, state.hits) == (2, 2)


def test_first_final_rule_claims_the_request() -> None:
    made = book(ERROR._replace(first=1), ERROR, OBSERVE)
    assert fired(made) == ["1", "3"]
    assert fired(made) == ["2", "3"]
    assert [state.matches for state in made.states()] == [2, 1, 2]


def test_entities_left_by_one_rule_are_for_the_next() -> None:
    made = book(ERROR, ERROR, ERROR)
    assert fired(made, Candidate("1", (0,)), Candidate("2", (0,)), Candidate("3", (0, 1))) == [
        "1",
        "3",
    ]
    assert fired(made, Candidate("1", (0,)), Candidate("2", None), Candidate("3", (1,))) == [
        "1",
        "2",
    ]


def test_ids_are_names_or_numbers() -> None:
    made = book(OBSERVE, OBSERVE._replace(name="joins"))
    assert [each.id for each in made.active()] == ["1", "joins"]
    with pytest.raises(Conflict, match="joins"):
        made.add(OBSERVE._replace(name="joins"), 0.0)
    assert made.remove("joins")
    assert not made.remove("joins")
    assert made.find("joins") is None
    assert made.add(OBSERVE, 0.0).active.id == "3"
    made.clear()
    assert made.active() == ()


def test_removed_rule_does_not_fire() -> None:
    assert fired(book(), Candidate("1", None)) == []


def test_number_of_rules_is_bounded() -> None:
    made = book(*[OBSERVE] * RULES_MAX)
    with pytest.raises(Conflict):
        made.add(OBSERVE, 0.0)


def test_invalid_rule_is_not_added() -> None:
    made = Rulebook(SERVED)
    with pytest.raises(InvalidJson):
        made.add(FaultRule(Error("NO_SUCH_ERROR")), 0.0)
    assert made.active() == ()


def test_view_has_given_fields_only() -> None:
    made = Rulebook(SERVED)
    view = made.add(ERROR._replace(first=2), 1.0).view(3.5)
    assert view.rule == {"action": "error", "error": "NOT_COORDINATOR", "first": 2}
    assert (view.id, view.matches, view.hits, view.held, view.age_ms) == ("1", 0, 0, 0, 2500)


# Separate counts, and rules after rules -----------------------------------------------------------


def test_matches_are_counted_separately() -> None:
    made = book(OBSERVE._replace(api="Produce", first=1, per="connection"))
    order = [bool(fired(made, Candidate("1", None, counted=each))) for each in "aabaabc"]
    assert order == [True, False, True, False, False, False, True]
    (state,) = made.states()
    assert (state.matches, state.hits) == (7, 3)


def test_only_the_last_counters_are_known() -> None:
    made = book(OBSERVE._replace(first=1, per="client_id"))
    for number in range(COUNTERS_MAX + 1):
        fired(made, Candidate("1", None, counted=str(number)))
    assert fired(made, Candidate("1", None, counted="1")) == []
    assert fired(made, Candidate("1", None, counted="0")) == ["1"]


def test_late_rule_claims_by_its_separate_count() -> None:
    made = book(ERROR._replace(first=1, per="connection"))
    late = Candidate("1", None, is_late=True, counted="a")
    assert fired(made, late) == ["1"]
    assert fired(made, Candidate("1", None, counted="a")) == ["1"]
    assert fired(made, late) == []


def test_rule_begins_after_another_one_has_fired_for_an_earlier_request() -> None:
    made = book(OBSERVE._replace(name="first", nth=2), OBSERVE._replace(after_rule="first"))
    both = (Candidate("first", None), Candidate("2", None))
    assert [fired(made, *both) for _ in range(4)] == [[], ["first"], ["2"], ["2"]]


def test_what_fired_for_the_same_request_is_no_reason_to_begin() -> None:
    made = book(OBSERVE._replace(name="first"), OBSERVE._replace(after_rule="first"))
    assert fired(made, Candidate("first", None)) == ["first"]
    assert fired(made, Candidate("2", None, fired=("first",))) == []
    assert fired(made, Candidate("2", None)) == ["2"]


def test_rule_rests_when_the_one_before_it_is_removed() -> None:
    made = book(OBSERVE._replace(name="first"), OBSERVE._replace(after_rule="first"))
    fired(made, Candidate("first", None))
    made.remove("first")
    assert fired(made, Candidate("2", None)) == []


def test_rule_after_an_unknown_one_is_rejected_with_a_suggestion() -> None:
    made = book(OBSERVE._replace(name="first"))
    with pytest.raises(InvalidJson, match=r"after_rule: there is no rule 'frist'.*'first'"):
        made.add(OBSERVE._replace(after_rule="frist"), 0.0)


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ({"action": "observe", "per": "connection"}, "per"),
        ({"action": "fail_append", "per": "topic", "first": 1}, "per"),
        ({"action": "refuse", "per": "topic", "first": 1}, "per"),
        ({"action": "hold", "point": "transaction.prepared", "per": "group", "first": 1}, "per"),
        ({"action": "delay", "delay_ms": 1, "seed": 4}, "seed"),
        ({"action": "delay", "delay_ms": 1, "distribution": "normal"}, "distribution"),
    ],
)
def test_count_or_chance_without_effect_is_rejected(rule: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidJson) as raised:
        book(parse(FaultRule, rule))
    assert [each.path for each in raised.value.faults] == [path]

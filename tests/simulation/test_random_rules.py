"""Random rules are valid, fair, of every action, and determined by the seed."""

from __future__ import annotations

from random import Random
from typing import Final

from minibroker.apis.registry import APIS
from minibroker.control.fault_shapes import FaultRule
from minibroker.faults.rules import check_rule
from tests.simulation.random_rules import ACTIONS, ERRORS, LATE_SINCE, draw_rule

COUNT: Final = 3000


def drawn(seed: int) -> list[FaultRule]:
    random = Random(seed)
    return [draw_rule(random, ("t", "u"), ("p", "q")) for _ in range(COUNT)]


def test_random_rules_are_valid_and_of_every_action_and_api() -> None:
    rules = drawn(1)
    for rule in rules:
        check_rule(rule, APIS)
    assert {rule.action for rule in rules} == set(ACTIONS)
    assert {rule.api for rule in rules} == set(ERRORS)


def test_random_rules_end_by_themselves() -> None:
    assert all(rule.until_ms for rule in drawn(2))


def test_old_versions_whose_late_requests_change_the_next_transaction_are_not_delayed() -> None:
    for rule in drawn(3):
        if rule.api in LATE_SINCE and rule.action in ("delay", "hold") and rule.at == "before":
            assert rule.version_min == LATE_SINCE[rule.api]


def test_random_rules_of_equal_seeds_are_equal() -> None:
    assert drawn(4) == drawn(4)
    assert drawn(4) != drawn(5)

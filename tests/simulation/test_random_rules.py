"""Random rules are valid, fair, of every action, and determined by the seed."""

from __future__ import annotations

from random import Random
from typing import Final

from minibroker.lab.faults.fault_rule import FaultRule, check_rule
from tests.lab.faults.messages import SERVED
from tests.simulation.fair_errors import ERRORS
from tests.simulation.random_rules import ACTIONS, LATE, LATE_SINCE, RuleTargets, draw_rule

COUNT: Final = 3000
TARGETS: Final = RuleTargets(
    apis=tuple(ERRORS),
    points=("transaction.prepared", "group.preparing_rebalance"),
    topics=("t", "u"),
    clients=("p", "q"),
)


def drawn(seed: int) -> list[FaultRule]:
    random = Random(seed)
    return [draw_rule(random, TARGETS) for _ in range(COUNT)]


def test_random_rules_are_valid_and_of_every_action_api_and_point() -> None:
    rules = drawn(1)
    for rule in rules:
        check_rule(rule, SERVED)
    assert {rule.action.name for rule in rules} == set(ACTIONS)
    assert {rule.api for rule in rules} == {None, *ERRORS}
    assert {rule.given.get("point") for rule in rules} == {None, *TARGETS.points}
    assert {rule.group for rule in rules} == {None, "g"}


def test_random_rules_are_about_their_targets_only() -> None:
    targets = TARGETS._replace(apis=("Heartbeat",), points=("transaction.completing",))
    rules = [draw_rule(Random(seed), targets) for seed in range(COUNT)]
    assert {rule.api for rule in rules} == {None, "Heartbeat"}
    assert {rule.given.get("point") for rule in rules} == {None, "transaction.completing"}


def test_random_rules_end_by_themselves() -> None:
    assert all(rule.until_ms for rule in drawn(2))


def test_old_versions_whose_late_requests_change_the_next_transaction_are_not_delayed() -> None:
    for rule in drawn(3):
        if rule.api in LATE_SINCE and rule.action.name in LATE and rule.action.at == "before":
            assert rule.version_min == LATE_SINCE[rule.api]


def test_random_rules_of_equal_seeds_are_equal() -> None:
    assert drawn(4) == drawn(4)
    assert drawn(4) != drawn(5)

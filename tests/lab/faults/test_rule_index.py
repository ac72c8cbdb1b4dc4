"""The index leaves out rules that cannot match a request, and no others."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.faults.fault_rule import FaultRule
from minibroker.lab.faults.rule_index import CLIENT_ID, CONNECTION, IndexedRule, RuleIndex
from minibroker.lab.faults.rules import ActiveRule
from minibroker_protocol.entities import MessageEntity
from minibroker_protocol.meanings import Meaning

TEXTS = st.sampled_from(["a", "ab", "abc", "b"])
SELECTORS = st.none() | TEXTS | st.sampled_from(["a*", "ab*", "*", "*b"])
RULES = st.builds(
    lambda client_id, connection, topic, group: FaultRule(
        "observe", client_id=client_id, connection=connection, topic=topic, group=group
    ),
    SELECTORS,
    st.none() | st.integers(1, 2),
    SELECTORS,
    SELECTORS,
)
KEYS = st.fixed_dictionaries({}, optional={Meaning.TOPIC: TEXTS, Meaning.GROUP: TEXTS})


def no_topic(topic_id: object) -> None:
    del topic_id


def indexed(rules: list[FaultRule]) -> tuple[RuleIndex, list[IndexedRule]]:
    index = RuleIndex()
    made = [IndexedRule(ActiveRule(str(at), rule), at) for at, rule in enumerate(rules)]
    for rule in made:
        index.add(rule)
    return index, made


@given(st.lists(RULES, max_size=8), st.lists(KEYS, min_size=1, max_size=3), TEXTS)
def test_every_rule_that_matches_is_found(
    rules: list[FaultRule], keys: list[dict[Meaning, Any]], client_id: str
) -> None:
    index, made = indexed(rules)
    entities = [MessageEntity(each, ()) for each in keys]
    values = {CLIENT_ID: client_id, CONNECTION: 1}
    found = {each.active.id for each in index.find(values, lambda: entities, no_topic)}
    for rule in made:
        # A rule about clients or connections is compared with them by its matcher.
        selects_it = rule.active.rule.connection in (None, 1)
        if rule.active.rule.client_id not in (None, client_id, f"{client_id[:1]}*", "*"):
            continue
        if selects_it and any(rule.matches_entity(each, no_topic) for each in entities):
            assert rule.active.id in found


@given(st.lists(RULES, max_size=8))
def test_index_without_its_rules_is_empty(rules: list[FaultRule]) -> None:
    index, made = indexed(rules)
    assert bool(index) == bool(made)
    for rule in made:
        index.remove(rule)
    assert not index
    assert not index.concerns(lambda: "a")


def test_rules_of_other_values_are_left_out() -> None:
    index, _ = indexed([FaultRule("observe", topic=f"t{number}") for number in range(100)])
    entities = [MessageEntity({Meaning.TOPIC: "t42"}, ())]
    found = [each.active.id for each in index.find({}, lambda: entities, no_topic)]
    assert found == ["42"]

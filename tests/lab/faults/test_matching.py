"""Rules match the requests and entities that they select, and no others."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.faults.actions import Close, Delay, Error, Hold, Observe, Refuse, Silent
from minibroker.lab.faults.fault_rule import ActiveRule, FaultRule, check_rule
from minibroker.lab.faults.matching import (
    CLIENT_ID,
    CONNECTION,
    ConnectionAttributes,
    IndexedRule,
    Matcher,
    PointMatcher,
    RuleIndex,
    matches_connection,
)
from minibroker.lab.faults.places import ENTITY_FIELDS
from minibroker.lab.schema import InvalidJson, parse
from minibroker_protocol import registry
from minibroker_protocol.entities import MessageEntity, entities
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import uuid_from_text
from minibroker_protocol.wire import RequestHeader, encode_request_header
from tests.lab.faults.messages import SERVED, request_of, served_versions
from tests.lab.faults.strategies import rules

FACTS = ConnectionAttributes(2, "PLAINTEXT", "127.0.0.1", "User:alice", "ab")
HEARTBEAT = HeartbeatRequest(group_id="g", member_id="m")


def header(key: ApiKey, version: int, correlation_id: int = 1) -> RequestHeader:
    return RequestHeader(key, version, correlation_id, "ab")


def start(key: ApiKey) -> bytes:
    """The header of a request."""
    return encode_request_header(header(key, 4))


def matcher(*rules_: FaultRule) -> Matcher:
    return Matcher([ActiveRule(str(number), rule) for number, rule in enumerate(rules_, 1)])


def no_topic(topic_id: object) -> str | None:
    del topic_id
    return None


def matched(made: Matcher, key: ApiKey = ApiKey.HEARTBEAT, request: Any = HEARTBEAT) -> list[str]:
    found = made.match_request(FACTS, header(key, 4), request, no_topic)
    return [] if found is None else [each.active.id for each in found.matches]


def test_key_of_a_coordinator_is_what_its_type_says() -> None:
    request = FindCoordinatorRequest(coordinator_keys=["x"], key_type=1)
    for selector, ids in (("group", []), ("transactional_id", ["1"])):
        rule = parse(FaultRule, {"action": "observe", selector: "x"})
        assert matched(matcher(rule), ApiKey.FIND_COORDINATOR, request) == ids


def test_resource_of_a_type_is_that_topic_or_group() -> None:
    resource = AlterConfigsResource(resource_type=32, resource_name="x")
    request = IncrementalAlterConfigsRequest(resources=[resource])
    for selector, ids in (("topic", []), ("group", ["1"]), ("resource", ["1"])):
        rule = parse(FaultRule, {"action": "observe", selector: "x"})
        head = header(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)
        found = matcher(rule).match_request(FACTS, head, request, no_topic)
        assert ([] if found is None else [each.active.id for each in found.matches]) == ids


def test_setting_of_a_new_topic_is_no_topic() -> None:
    config = CreatableTopicConfig(name="retention.ms", value="1")
    request = CreateTopicsRequest(topics=[CreatableTopic(name="t", configs=[config])])
    for topic, ids in (("retention.ms", []), ("t", ["1"])):
        rule = parse(FaultRule, {"action": "observe", "topic": topic})
        assert matched(matcher(rule), ApiKey.CREATE_TOPICS, request) == ids


def test_subscribed_topics_of_a_heartbeat_are_its_topics() -> None:
    request = ConsumerGroupHeartbeatRequest(group_id="g", subscribed_topic_names=["s", "t"])
    rule = parse(FaultRule, {"action": "observe", "topic": "t"})
    head = header(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1)
    found = matcher(rule).match_request(FACTS, head, request, no_topic)
    assert found is not None
    assert [each.keys[Meaning.TOPIC] for each in found.matches[0].found] == ["t"]


def test_names_of_a_namespace_are_those_that_its_clients_know() -> None:
    for group, ids in (("g", ["1"]), ("*", ["1"]), ("ns.g", []), ("h", [])):
        rule = parse(FaultRule, {"action": "observe", "group": group, "namespace": "ns"})
        assert matched(matcher(rule), request=HeartbeatRequest(group_id="ns.g")) == ids
        assert matched(matcher(rule), request=HeartbeatRequest(group_id="g")) == []


def _text_matches(selector: str, value: object) -> bool:
    pattern = ".*".join(map(re.escape, selector.split("*")))
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _expected(rule: FaultRule, head: RequestHeader, request: Any) -> list[int] | None:
    """Positions of the matching entities, by a plain reading of the rule; None if no match."""
    in_network = {"127.0.0.1": True, "127.0.0.0/8": True, None: True}
    if (
        rule.selected_api not in (None, head.api_key)
        or not (rule.version_min or 0) <= head.api_version <= (rule.version_max or 99)
        or rule.correlation_id not in (None, head.correlation_id)
        or rule.connection not in (None, FACTS.number)
        or rule.listener not in (None, FACTS.listener)
        or not in_network.get(rule.address, False)
        or not (rule.principal is None or _text_matches(rule.principal, FACTS.principal))
        or not (rule.client_id is None or _text_matches(rule.client_id, FACTS.client_id))
        or rule.action.effect_fault(registry.schema(head.api_key), head.api_version) is not None
    ):
        return None
    given_ = {
        name: getattr(rule, name) for name in ENTITY_FIELDS if getattr(rule, name) is not None
    }
    positions = []
    for position, entity in enumerate(entities(request, head.api_version)):
        keys = entity.keys
        for name, selector in given_.items():
            value = keys.get(ENTITY_FIELDS[name])
            if name == "topic_id":
                fits = value == uuid_from_text(selector)
            elif name == "partition":
                fits = value == selector
            else:
                fits = _text_matches(selector, value)
            if not fits:
                break
        else:
            positions.append(position)
    return positions if positions or not given_ else None


@given(rules(), st.sampled_from(list(served_versions())), st.integers(0, 2))
def test_any_rule_matches_what_its_selectors_say(
    drawn: dict[str, Any], api: tuple[ApiKey, int], correlation_id: int
) -> None:
    rule = parse(FaultRule, drawn)
    key, version = api
    request, head = request_of(key, version), header(key, version, correlation_id)
    found = matcher(rule).match_request(FACTS, head, request, no_topic)
    expected = _expected(rule, head, request) if rule.is_about_requests else None
    if expected is None:
        assert found is None
        return
    assert found is not None
    everything = entities(request, version)
    assert found.matches[0].found == tuple(everything[at] for at in expected)
    assert found.entity_count == len(everything)
    assert matcher(rule).concerns(encode_request_header(head))


@given(
    st.lists(rules(), min_size=1, max_size=8),
    st.sampled_from(list(served_versions())),
    st.data(),
)
def test_any_rules_are_found_in_their_order_until_they_are_removed(
    drawn: list[dict[str, Any]], api: tuple[ApiKey, int], data: st.DataObject
) -> None:
    made = matcher(*(parse(FaultRule, each) for each in drawn))
    key, version = api
    request, head = request_of(key, version), header(key, version)
    for rule_id in data.draw(st.lists(st.sampled_from(sorted(made.rules)), max_size=4)):
        made.remove(rule_id)
    found = made.match_request(FACTS, head, request, no_topic)
    matching = [
        rule_id
        for rule_id, active in made.rules.items()
        if active.rule.is_about_requests and _expected(active.rule, head, request) is not None
    ]
    assert ([] if found is None else [each.active.id for each in found.matches]) == matching
    for rule_id in list(made.rules):
        made.remove(rule_id)
    assert not made.concerns(start(key))
    assert vars(made) | {"_last_order": 0} == vars(Matcher())


@pytest.mark.parametrize(
    ("selectors", "requests"),
    [
        ({"client_id": "c{}"}, 0),
        ({"client_id": "c{}*"}, 0),
        ({"topic": "t{}"}, 1),
        ({"topic": "t{}*"}, 1),
        ({"group": "g{}", "api": "Heartbeat"}, 0),
        ({"connection": "{}"}, 0),
    ],
)
def test_rules_of_others_are_not_compared_with_a_request(
    selectors: dict[str, str], requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Matcher()
    for number in range(100, 1000):
        chosen: dict[str, Any] = {name: text.format(number) for name, text in selectors.items()}
        if "connection" in chosen:
            chosen["connection"] = number
        made.add(ActiveRule(str(number), FaultRule(Observe(), **chosen)))
    compared: list[str] = []

    def matches_entity(self: IndexedRule, *_: object) -> bool:
        compared.append(self.active.id)
        return False

    monkeypatch.setattr(IndexedRule, "matches_entity", matches_entity)
    request = FetchRequest(topics=[FetchTopic(topic="t123", partitions=[FetchPartition()])])
    made.match_request(FACTS, header(ApiKey.FETCH, 4), request, no_topic)
    assert len(compared) == requests


def test_client_without_rules_is_not_of_concern() -> None:
    made = matcher(FaultRule(Observe(), client_id="other"), FaultRule(Observe(), client_id="o*"))
    assert not made.concerns(start(ApiKey.FETCH))
    assert not made.concerns(b"")
    made.add(ActiveRule("3", FaultRule(Observe(), client_id="a*b")))
    assert made.concerns(start(ApiKey.FETCH))
    without_id = RequestHeader(ApiKey.FETCH, 4, 1, None)
    assert not made.concerns(encode_request_header(without_id))


def test_rules_match_in_the_order_in_which_they_were_added() -> None:
    made = matcher(
        FaultRule(Observe(), api="Heartbeat"),
        FaultRule(Observe(), api="Fetch"),
        FaultRule(Observe()),
        FaultRule(Observe(), group="other"),
        FaultRule(Close()),
    )
    assert matched(made) == ["1", "3"]


def test_selectors_match_at_the_same_entity() -> None:
    topics = [
        FetchTopic(topic="a", partitions=[FetchPartition(partition=0)]),
        FetchTopic(topic="b", partitions=[FetchPartition(partition=1)]),
    ]
    request = FetchRequest(topics=topics)
    assert not matched(matcher(FaultRule(Observe(), topic="a", partition=1)), ApiKey.FETCH, request)
    made = matcher(FaultRule(Error(error="NONE"), topic="b", partition=1))
    found = made.match_request(FACTS, header(ApiKey.FETCH, 4), request, no_topic)
    assert found is not None
    assert [each.claims for each in found.matches] == [(1,)]


def test_topic_of_request_with_ids_is_found_by_name() -> None:
    topic = FetchTopic(topic_id=b"i" * 16, partitions=[FetchPartition(partition=0)])
    made = matcher(FaultRule(Observe(), topic="named"))
    request = FetchRequest(topics=[topic])
    names = {b"i" * 16: "named"}
    assert made.match_request(FACTS, header(ApiKey.FETCH, 13), request, names.get)
    assert not made.match_request(FACTS, header(ApiKey.FETCH, 13), request, no_topic)


def test_rule_about_waits_needs_full_fetches() -> None:
    made = matcher(FaultRule(Hold(point="fetch.waiting")))
    assert made.match_request(FACTS, header(ApiKey.FETCH, 4), FetchRequest(), no_topic)
    assert made.forbids_fetch_sessions
    made.remove("1")
    assert not made.forbids_fetch_sessions


def test_point_of_requests_is_of_concern_for_its_api_only() -> None:
    made = matcher(FaultRule(Hold(point="produce.appended")))
    assert made.concerns(start(ApiKey.PRODUCE))
    assert not made.concerns(start(ApiKey.FETCH))
    assert not matched(made)


def test_rules_inside_of_the_broker_match_at_their_point_only() -> None:
    made = [
        ActiveRule("1", FaultRule(Hold(point="group.preparing_rebalance"), group="g*")),
        ActiveRule("2", FaultRule(Hold(point="transaction.prepared"))),
        ActiveRule("3", FaultRule(Hold(point="group.preparing_rebalance"))),
        ActiveRule("4", FaultRule(Hold())),
    ]
    points = PointMatcher()
    for each in made:
        points.add(each)
    for group, expected in (("g1", ["1", "3"]), ("h", ["3"])):
        found = points.match("group.preparing_rebalance", {Meaning.GROUP: group})
        assert [each.rule_id for each in found] == expected
    assert points.match("controller.applied", {}) == ()
    assert not Matcher(made[:3]).concerns(start(ApiKey.JOIN_GROUP))
    points.remove("1")
    points.remove("none")
    found = points.match("group.preparing_rebalance", {Meaning.GROUP: "g1"})
    assert [each.rule_id for each in found] == ["3"]


def test_only_apis_of_rules_are_of_concern() -> None:
    made = matcher(FaultRule(Observe(), api="Heartbeat"), FaultRule(Refuse()))
    assert made.concerns(start(ApiKey.HEARTBEAT))
    assert not made.concerns(start(ApiKey.FETCH))
    assert not matcher(FaultRule(Refuse())).concerns(start(ApiKey.FETCH))
    assert matcher(FaultRule(Observe())).concerns(start(ApiKey.FETCH))


def test_fetch_sessions_are_forbidden_for_rules_about_partitions() -> None:
    assert matcher(FaultRule(Observe(), topic="t")).forbids_fetch_sessions
    assert matcher(FaultRule(Error(error="NONE"))).forbids_fetch_sessions
    assert not matcher(FaultRule(Delay(delay_ms=1))).forbids_fetch_sessions
    assert not matcher(FaultRule(Observe(), api="Produce", topic="t")).forbids_fetch_sessions


def test_new_connections_are_matched_by_rules_about_them() -> None:
    made = matcher(
        FaultRule(Refuse(), listener="OTHER"),
        FaultRule(Silent(), address="127.0.0.0/8"),
        FaultRule(Close()),
        FaultRule(Observe()),
    )
    assert [each.id for each in made.match_new_connection(FACTS)] == ["2"]
    assert matches_connection(FaultRule(Close(), client_id="a*"), FACTS)
    assert not matches_connection(FaultRule(Close(), client_id="a"), FACTS)


def test_client_without_id_matches_no_client_id() -> None:
    facts = FACTS._replace(client_id=None)
    assert not matches_connection(FaultRule(Close(), client_id="*"), facts)


TEXTS = st.sampled_from(["a", "ab", "abc", "b"])
SELECTORS = st.none() | TEXTS | st.sampled_from(["a*", "ab*", "*", "*b"])
RULES = st.builds(
    lambda client_id, connection, topic, group: FaultRule(
        Observe(), client_id=client_id, connection=connection, topic=topic, group=group
    ),
    SELECTORS,
    st.none() | st.integers(1, 2),
    SELECTORS,
    SELECTORS,
)
KEYS = st.fixed_dictionaries({}, optional={Meaning.TOPIC: TEXTS, Meaning.GROUP: TEXTS})


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
    index, _ = indexed([FaultRule(Observe(), topic=f"t{number}") for number in range(100)])
    entities = [MessageEntity({Meaning.TOPIC: "t42"}, ())]
    found = [each.active.id for each in index.find({}, lambda: entities, no_topic)]
    assert found == ["42"]


# Fields of requests -------------------------------------------------------------------------------


def produce(acks: int) -> ProduceRequest:
    topics = [TopicProduceData(name=name, partition_data=[PartitionProduceData()]) for name in "ab"]
    return ProduceRequest(acks=acks, topic_data=topics)


@pytest.mark.parametrize(("acks", "ids"), [(0, []), (1, ["1"]), (-1, [])])
def test_field_of_a_request_is_selected(acks: int, ids: list[str]) -> None:
    rule = parse(FaultRule, {"action": "observe", "api": "Produce", "request": {"acks": 1}})
    assert matched(matcher(rule), ApiKey.PRODUCE, produce(acks)) == ids
    of_topic = rule._replace(topic="b")
    assert matched(matcher(of_topic), ApiKey.PRODUCE, produce(acks)) == ids
    assert matched(matcher(rule._replace(topic="c")), ApiKey.PRODUCE, produce(acks)) == []


def test_elements_are_selected_by_their_own_fields() -> None:
    partitions = [FetchPartition(partition=at, current_leader_epoch=at % 2) for at in range(4)]
    request = FetchRequest(topics=[FetchTopic(topic="t", partitions=partitions)])
    fields = {"current_leader_epoch": 1, "isolation_level": 0}
    rule = parse(FaultRule, {"action": "observe", "api": "Fetch", "request": fields})
    made = matcher(rule)
    assert made.forbids_fetch_sessions
    found = made.match_request(FACTS, header(ApiKey.FETCH, 12), request, no_topic)
    assert found is not None
    assert [each.keys[Meaning.PARTITION] for each in found.matches[0].found] == [1, 3]
    assert found.matches[0].claims == (1, 3)
    assert made.match_request(FACTS, header(ApiKey.FETCH, 5), request, no_topic) is None


def test_field_of_the_whole_fetch_leaves_its_session() -> None:
    fields = {"session_epoch": 0}
    rule = parse(FaultRule, {"action": "observe", "api": "Fetch", "request": fields})
    assert not matcher(rule).forbids_fetch_sessions


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        ({"ack": 1}, "request.ack", "did you mean 'acks'"),
        ({"acks": "all"}, "request.acks", "whole number"),
        ({"acks": 2**15}, "request.acks", "range"),
    ],
)
def test_field_that_no_request_has_is_rejected(
    fields: dict[str, Any], path: str, message: str
) -> None:
    rule = parse(FaultRule, {"action": "observe", "api": "Produce", "request": fields})
    with pytest.raises(InvalidJson) as raised:
        check_rule(rule, SERVED)
    (fault,) = raised.value.faults
    assert fault.path == path
    assert message in fault.message
    with pytest.raises(InvalidJson, match="api: is missing: request depends on it"):
        check_rule(rule._replace(api=None), SERVED)


@pytest.mark.parametrize(
    ("per", "counted"),
    [
        ("connection", str(FACTS.number)),
        ("client_id", "ab"),
        ("topic", "a"),
        ("partition", "a-0"),
        (None, ""),
    ],
)
def test_separate_counts_are_by_the_first_match(per: Any, counted: str) -> None:
    rule = FaultRule(Observe(), first=1, per=per)
    found = matcher(rule).match_request(FACTS, header(ApiKey.PRODUCE, 7), produce(1), no_topic)
    assert found is not None
    assert found.matches[0].counted == counted

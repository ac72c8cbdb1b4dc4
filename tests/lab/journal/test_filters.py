"""Filters match only what has all the wanted fields."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.faults.actions import Error
from minibroker.lab.faults.fault_rule import ActiveRule, FaultRule
from minibroker.lab.faults.matching import ConnectionAttributes, Matcher
from minibroker.lab.journal.entries import EntryKind, JournalEntry, Loss, LossReason
from minibroker.lab.journal.filters import (
    EntryFilter,
    TopicIds,
    did_not_happen_before,
    happened,
    happened_in_order,
    matches_wildcard,
)
from minibroker.lab.namespaces import PrefixedNames
from minibroker.lab.proxy.namespace import NamespaceNames
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import values
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import RequestHeader, encode_request_header, encode_response_header
from tests.lab.journal.entries_of_tests import (
    entry_of,
    metadata_entry,
    request_entry,
    response_entry,
)

NAMES = PrefixedNames("ns.")


@pytest.mark.parametrize(
    ("wanted", "entry"),
    [
        (EntryFilter(), entry_of("clock")),
        (EntryFilter(kinds=frozenset({EntryKind.REQUEST})), request_entry()),
        (EntryFilter(api="HEARTBEAT"), request_entry()),
        (EntryFilter(api="12"), response_entry()),
        (EntryFilter(client_id="report-*"), request_entry(client_id="report-1")),
        (EntryFilter(client_id="report[?]*"), request_entry(client_id="report[?]-1")),
        (EntryFilter(connection="5"), request_entry()),
        (EntryFilter(role="processor-0"), request_entry()),
        (EntryFilter(group="g"), request_entry()),
        (EntryFilter(topic="orders"), metadata_entry("orders")),
        (EntryFilter(topic="orders", names=NAMES), metadata_entry("ns.orders")),
        (EntryFilter(group="g", names=NAMES), request_entry("ns.g")),
        (EntryFilter(names=NAMES), metadata_entry("ns.orders")),
        (EntryFilter(names=NAMES), entry_of("state", details={"what": "group", "name": "ns.g"})),
        (EntryFilter(error="REBALANCE_IN_PROGRESS"), response_entry(27)),
        (EntryFilter(error="27"), response_entry(27)),
        (EntryFilter(details={"rule": "1"}), entry_of("fault", details={"rule": "1", "at": 2})),
        (
            EntryFilter(group="g"),
            entry_of("state", details={"what": "group", "name": "g", "to": "Stable"}),
        ),
        (EntryFilter(after=3), entry_of("clock", sequence=4)),
    ],
)
def test_filter_of_its_entry_matches(wanted: EntryFilter, entry: JournalEntry) -> None:
    assert wanted.matches(entry)


@pytest.mark.parametrize(
    ("wanted", "entry"),
    [
        (EntryFilter(kinds=frozenset({EntryKind.REQUEST})), response_entry()),
        (EntryFilter(api="Fetch"), request_entry()),
        (EntryFilter(api="Heartbeat"), entry_of("clock")),
        (EntryFilter(client_id="report-*"), request_entry(client_id="other")),
        (EntryFilter(client_id="*"), entry_of("clock")),
        (EntryFilter(connection="6"), request_entry()),
        (EntryFilter(role="worker-0"), request_entry()),
        (EntryFilter(group="m"), request_entry()),  # That is the member.
        (EntryFilter(topic="orders"), metadata_entry("orders-2")),
        (EntryFilter(topic="orders", names=NAMES), metadata_entry("orders")),
        (EntryFilter(names=NAMES), metadata_entry("orders")),
        (EntryFilter(names=NAMES), request_entry("g", client_id="ns.c")),
        (EntryFilter(names=NAMES), entry_of("state", details={"what": "group", "name": "g"})),
        (EntryFilter(names=NAMES), entry_of("clock")),
        (EntryFilter(topic="orders"), entry_of("request", b"orders")),
        (EntryFilter(error="REBALANCE_IN_PROGRESS"), response_entry(0)),
        (EntryFilter(error="NO_SUCH_ERROR"), response_entry(0)),
        (EntryFilter(error="0"), request_entry()),
        (EntryFilter(details={"rule": "1"}), entry_of("fault", details={"rule": "2"})),
        (
            EntryFilter(topic="g"),
            entry_of("state", details={"what": "group", "name": "g", "to": "Stable"}),
        ),
        (EntryFilter(after=3), entry_of("clock", sequence=3)),
    ],
)
def test_filter_of_another_entry_does_not_match(wanted: EntryFilter, entry: JournalEntry) -> None:
    assert not wanted.matches(entry)


KEYS_OF_GROUPS = FindCoordinatorRequest(key_type=0, coordinator_keys=["x"])
KEYS_OF_TRANSACTIONS = FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])
NEW_TOPIC = CreateTopicsRequest(
    topics=[
        CreatableTopic(name="t", configs=[CreatableTopicConfig(name="retention.ms", value="1")])
    ]
)
SUBSCRIPTION = ConsumerGroupHeartbeatRequest(group_id="g", subscribed_topic_names=["t"])


@pytest.mark.parametrize(
    ("request_", "version", "meaning", "name", "is_named"),
    [
        (FindCoordinatorRequest(key_type=1, key="x"), 3, Meaning.GROUP, "x", False),
        (FindCoordinatorRequest(key_type=0, key="x"), 3, Meaning.GROUP, "x", True),
        (KEYS_OF_TRANSACTIONS, 4, Meaning.GROUP, "x", False),
        (KEYS_OF_TRANSACTIONS, 4, Meaning.TRANSACTIONAL_ID, "x", True),
        (KEYS_OF_GROUPS, 4, Meaning.TRANSACTIONAL_ID, "x", False),
        (KEYS_OF_GROUPS, 4, Meaning.GROUP, "x", True),
        (NEW_TOPIC, 7, Meaning.TOPIC, "retention.ms", False),
        (NEW_TOPIC, 7, Meaning.TOPIC, "t", True),
        (SUBSCRIPTION, 0, Meaning.TOPIC, "t", True),
    ],
)
def test_filter_fault_rule_and_namespace_agree_on_what_a_request_names(
    request_: Message, version: int, meaning: Meaning, name: str, is_named: bool
) -> None:
    key = ApiKey(type(request_).__api_key__ or 0)
    header = RequestHeader(key, version, 1, "c")
    frame = encode_request_header(header) + encode(request_, version)
    if meaning is not Meaning.TRANSACTIONAL_ID:  # The journal has no condition on it.
        entry = entry_of("request", frame, api=key.name, version=version)
        assert EntryFilter(**{meaning.value: name}).matches(entry) == is_named  # type: ignore[arg-type]
    rule = FaultRule(Error("NOT_COORDINATOR"), **{meaning.value: name})  # type: ignore[arg-type]
    matcher = Matcher([ActiveRule("1", rule)])
    facts = ConnectionAttributes(1, "PLAINTEXT", "127.0.0.1", "User:a")
    found = matcher.match_request(facts, header, request_, lambda _topic_id: None)
    assert (found is not None) == is_named
    renamed = decode(type(request_), version, encode(request_, version))
    NamespaceNames("ns.").to_broker(renamed, version)
    assert (f"ns.{name}" in values(renamed, version, {meaning})) == is_named


def test_filter_by_group_matches_a_coordinator_of_either_type_in_a_response() -> None:
    """The response does not say which it is."""
    found = FindCoordinatorResponse(coordinators=[Coordinator(key="x")])
    header = encode_response_header(ApiKey.FIND_COORDINATOR, 4, 1)
    entry = entry_of("response", header + encode(found, 4), api="FindCoordinator", version=4)
    assert EntryFilter(group="x").matches(entry)
    assert not EntryFilter(topic="x").matches(entry)


def test_filter_by_topic_matches_a_config_resource_of_that_type_only() -> None:
    header = encode_request_header(RequestHeader(ApiKey.DESCRIBE_CONFIGS, 4, 1, "c"))
    for kind, is_topic in ((2, True), (32, False)):
        resource = DescribeConfigsResource(resource_type=kind, resource_name="x")
        frame = header + encode(DescribeConfigsRequest(resources=[resource]), 4)
        entry = entry_of("request", frame, api="DescribeConfigs", version=4)
        assert EntryFilter(topic="x").matches(entry) == is_topic
        assert EntryFilter(group="x").matches(entry) != is_topic


@given(st.text("ab.*", max_size=6), st.text("ab.*", max_size=8))
def test_star_matches_any_text_and_nothing_else_is_special(pattern: str, text: str) -> None:
    expected = re.compile(".*".join(map(re.escape, pattern.split("*")))).fullmatch(text)
    assert matches_wildcard(text, pattern) == (expected is not None)


def test_many_stars_match_in_linear_time() -> None:
    assert not matches_wildcard("a" * 30_000, "*a" * 500 + "b")
    assert not matches_wildcard("a" * 30_000, "*a" * 500 + "b*a")


def test_name_has_the_ids_of_topics_that_are_gone() -> None:
    ids = TopicIds()
    ids.learn({b"1": "t", b"2": "u"})
    ids.learn({b"2": "u", b"3": "t"})
    assert ids.of("t") == {b"1", b"3"}
    assert ids.of("u") == {b"2"}
    assert ids.of("none") == frozenset()


def test_ids_that_were_learned_first_are_forgotten() -> None:
    ids = TopicIds(2)
    for topic_id, name in [(b"1", "t"), (b"2", "u"), (b"3", "t"), (b"4", "u")]:
        ids.learn({topic_id: name})
    assert ids.of("t") == {b"3"}
    assert ids.of("u") == {b"4"}
    ids.learn({b"5": "v"})
    assert ids.of("t") == frozenset()


KINDS = ("connection_opened", "request", "fault", "response", "request", "connection_closed")
ENTRIES = [
    entry_of(kind, sequence=number, clock_ms=number * 10.0) for number, kind in enumerate(KINDS, 1)
]


def of(kind: str) -> EntryFilter:
    return EntryFilter(kinds=frozenset({EntryKind(kind)}))


def sequences(entries: tuple[JournalEntry, ...]) -> list[int]:
    return [entry.sequence for entry in entries]


def test_happened_with_enough_entries_holds() -> None:
    result = happened(ENTRIES, of("request"), times=2)
    assert result.holds
    assert sequences(result.entries) == [2, 5]


def test_happened_with_too_few_entries_says_how_many() -> None:
    result = happened(ENTRIES, of("request"), times=3)
    assert not result.holds
    assert result.text == "2 entries match, at least 3 are wanted"


def test_happened_in_order_of_the_order_holds() -> None:
    result = happened_in_order(ENTRIES, [of("request"), of("response"), of("request")])
    assert result.holds
    assert sequences(result.entries) == [2, 4, 5]


def test_happened_in_order_of_another_order_names_the_missing_step() -> None:
    result = happened_in_order(ENTRIES, [of("response"), of("fault")])
    assert not result.holds
    assert result.text == "step 2 of 2 did not happen after entry 4"
    assert happened_in_order(ENTRIES, [of("clock")]).text == "step 1 of 1 did not happen at all"


def test_happened_in_order_needs_an_entry_for_each_step() -> None:
    assert not happened_in_order(ENTRIES, [of("fault"), of("fault")]).holds


def test_did_not_happen_before_the_time_of_an_entry_holds() -> None:
    assert did_not_happen_before(ENTRIES, of("fault"), 30.0).holds
    assert did_not_happen_before(ENTRIES, of("clock")).holds


def test_did_not_happen_before_a_later_time_names_the_entry() -> None:
    result = did_not_happen_before(ENTRIES, of("fault"), 30.5)
    assert not result.holds
    assert result.text == "entry 3 matches 0.5 ms too early"
    assert did_not_happen_before(ENTRIES, of("fault")).text == "entry 3 matches"


LOSS = Loss("worker-0", 4, LossReason.PROCESS_ENDED, 30.0).entry(10, 45.0)
WITH_LOSS = [*ENTRIES, LOSS]


def test_did_not_happen_over_a_loss_is_unknown() -> None:
    result = did_not_happen_before(WITH_LOSS, of("clock"))
    assert not result.holds
    assert result.text == "4 entries up to 10 were lost, so it is unknown whether one matched"
    assert result.entries == (LOSS,)
    assert not did_not_happen_before(WITH_LOSS, of("clock"), 31.0).holds


def test_did_not_happen_holds_where_no_lost_entry_could_have_matched() -> None:
    assert did_not_happen_before(WITH_LOSS, of("clock"), 30.0).holds, "before the loss"
    assert did_not_happen_before(WITH_LOSS, replace(of("clock"), after=10)).holds, "after it"
    assert did_not_happen_before(WITH_LOSS, replace(of("clock"), role="worker-1")).holds
    assert not did_not_happen_before(WITH_LOSS, replace(of("clock"), role="worker-0")).holds
    text = did_not_happen_before(WITH_LOSS, replace(of("clock"), after=8)).text
    assert text.startswith("2 entries up to 10")


def test_loss_itself_can_be_asserted() -> None:
    assert happened(WITH_LOSS, of("lost")).holds
    assert did_not_happen_before(ENTRIES, of("lost")).holds
    assert did_not_happen_before(WITH_LOSS, of("lost")).text == "entry 10 matches"


def test_happened_over_a_loss_needs_an_entry_and_names_the_loss() -> None:
    for result in (happened(WITH_LOSS, of("clock")), happened_in_order(WITH_LOSS, [of("clock")])):
        assert not result.holds
        assert result.text.endswith("; 4 entries were lost, which may have matched")


def test_did_not_happen_is_unknown_while_a_process_has_entries() -> None:
    pending = {"worker-1": 3}
    result = did_not_happen_before(ENTRIES, of("clock"), pending=pending)
    assert not result.holds
    assert result.text.startswith("worker-1 does not respond and has 3 entries")
    elsewhere = replace(of("clock"), role="worker-0")
    assert did_not_happen_before(ENTRIES, elsewhere, pending=pending).holds

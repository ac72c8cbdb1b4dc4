"""Rules that fired change the request and the response as they say."""

from __future__ import annotations

from typing import Any, cast

import pytest

from minibroker.lab.faults.actions import (
    Corrupt,
    Delay,
    Error,
    Hold,
    Observe,
    Replace,
    ThrottleResponse,
)
from minibroker.lab.faults.course import (
    NO_EFFECT,
    ErrorPlan,
    FaultCourse,
    choose_site,
    error_response,
    error_sites,
    fail_everything,
    plan_error,
    remove_entities,
)
from minibroker.lab.faults.fault_rule import ActiveRule, FaultRule
from minibroker.lab.faults.matching import ConnectionAttributes, Matcher
from minibroker.lab.faults.rulebook import Firing
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import MessageEntity, entities
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.create_acls import AclCreationResult, CreateAclsResponse
from minibroker_protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from minibroker_protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Message, Struct
from minibroker_protocol.wire import RequestHeader
from tests.lab.faults.messages import request_of, served_versions

FACTS = ConnectionAttributes(1, "PLAINTEXT", "127.0.0.1", "User:ANONYMOUS", "c")
HEARTBEAT = HeartbeatRequest(group_id="g", member_id="m")


def course(
    request: Struct, *rules: FaultRule, key: ApiKey = ApiKey.HEARTBEAT, version: int = 4
) -> FaultCourse:
    """The course of a request for which all rules fire."""
    active = [ActiveRule(str(number), rule) for number, rule in enumerate(rules, 1)]
    header = RequestHeader(key, version, 1, "c")
    matches = Matcher(active).match_request(FACTS, header, request, lambda _: None)
    assert matches is not None
    made = FaultCourse(header, request, matches)
    made.begin([Firing(each.rule_id, 0.0, 0, is_late=each.is_late) for each in made.candidates()])
    return made


def finished(made: FaultCourse, response: Any) -> Any:
    """The response when all rules fire that have an effect on it."""
    response = made.respond(response)
    for match in made.late_matches():
        changed = made.effect(match, response, bytes)
        if changed is not NO_EFFECT:
            made.fire_late(match, Firing(match.active.id, 0.0, 0), changed)
            response = changed
    return response


def fetch() -> FetchRequest:
    partitions = [FetchPartition(partition=index) for index in range(3)]
    return FetchRequest(max_wait_ms=500, topics=[FetchTopic(topic="t", partitions=partitions)])


def fetched(*indexes: int) -> FetchResponse:
    partitions = [PartitionData(partition_index=each, records=bytes(70)) for each in indexes]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


def errors(response: Any) -> dict[int, int]:
    return {
        each.partition_index: each.error_code
        for topic in response.responses
        for each in topic.partitions
    }


def test_error_before_the_work_answers_instead_of_it() -> None:
    made = course(HEARTBEAT, FaultRule(Error(error="NOT_COORDINATOR")))
    assert not made.prepare(HEARTBEAT)
    assert made.has_error
    assert finished(made, None).error_code == 16


def test_error_after_the_work_replaces_its_answer() -> None:
    made = course(HEARTBEAT, FaultRule(Error(error="NOT_COORDINATOR", at="after")))
    assert made.prepare(HEARTBEAT)
    assert finished(made, HeartbeatResponse()).error_code == 16
    assert finished(made, None) is None


def test_errors_of_single_partitions_leave_the_rest_to_the_work() -> None:
    request = fetch()
    made = course(
        request,
        FaultRule(Error(error="NOT_LEADER_OR_FOLLOWER"), partition=0),
        FaultRule(Error(error="OFFSET_OUT_OF_RANGE", at="after"), partition=2),
        key=ApiKey.FETCH,
    )
    assert made.prepare(request)
    assert [each.partition for each in request.topics[0].partitions] == [1, 2]
    assert request.max_wait_ms == 0
    assert errors(finished(made, fetched(1, 2))) == {0: 6, 1: 0, 2: 1}


def test_errors_of_all_partitions_leave_nothing_to_do() -> None:
    request = fetch()
    rules = [FaultRule(Error(error=str(each + 1)), partition=each) for each in range(3)]
    made = course(request, *rules, key=ApiKey.FETCH)
    assert not made.prepare(request)
    assert errors(finished(made, None)) == {0: 1, 1: 2, 2: 3}


def test_entity_gets_the_error_of_the_first_rule() -> None:
    request = fetch()
    made = course(
        request,
        FaultRule(Error(error="1"), partition=1),
        FaultRule(Error(error="6"), topic="t"),
        key=ApiKey.FETCH,
    )
    assert not made.prepare(request)
    assert errors(finished(made, None)) == {0: 6, 1: 1, 2: 6}


def test_error_without_a_place_is_put_after_the_work() -> None:
    request = MetadataRequest(topics=None)
    made = course(request, FaultRule(Error(error="5")), key=ApiKey.METADATA, version=12)
    assert made.prepare(request)
    response = finished(made, MetadataResponse(topics=[MetadataResponseTopic(name="a")]))
    assert response.topics[0].error_code == 5


def test_replaced_fields_join_the_answer_or_stand_for_it() -> None:
    rule = FaultRule(Replace(response={"throttle_time_ms": 3}), api="Heartbeat")
    made = course(HEARTBEAT, rule)
    assert made.prepare(HEARTBEAT)
    answer = finished(made, HeartbeatResponse(error_code=27))
    assert (answer.error_code, answer.throttle_time_ms) == (27, 3)
    made = course(HEARTBEAT, rule._replace(action=Replace({"throttle_time_ms": 3}, at="before")))
    assert not made.prepare(HEARTBEAT)
    answer = finished(made, None)
    assert (answer.error_code, answer.throttle_time_ms) == (0, 3)


def test_throttle_sets_the_throttle_time() -> None:
    made = course(HEARTBEAT, FaultRule(ThrottleResponse(throttle_ms=250)))
    assert made.prepare(HEARTBEAT)
    assert finished(made, HeartbeatResponse()).throttle_time_ms == 250


def test_checksums_of_matching_partitions_with_records_are_damaged() -> None:
    request, response = fetch(), fetched(0, 1, 2)
    response.responses[0].partitions[2].records = b""
    made = course(request, FaultRule(Corrupt(part="crc"), partition=1), key=ApiKey.FETCH)
    assert made.prepare(request)
    changed = finished(made, response)
    found = [each.records for each in changed.responses[0].partitions]
    assert found[0] == bytes(70)
    assert found[1] == bytes(17) + b"\xff" + bytes(52)
    assert made.damage(b"frame") == b"frame"
    made = course(request, FaultRule(Corrupt(part="crc"), partition=2), key=ApiKey.FETCH)
    assert finished(made, response) == response
    assert made.fired_rules() == []


def test_checksum_of_topic_with_id_is_found() -> None:
    topic = FetchTopic(topic_id=b"i" * 16, partitions=[FetchPartition(partition=1)])
    request = FetchRequest(topics=[topic])
    rule = FaultRule(Corrupt(part="crc"), partition=1)
    for topic_id, count in ((b"j" * 16, 0), (b"i" * 16, 1)):
        made = course(request, rule, key=ApiKey.FETCH, version=13)
        response = fetched(1)
        response.responses[0].topic_id = topic_id
        finished(made, response)
        assert len(made.fired_rules()) == count


def test_frame_is_damaged() -> None:
    made = course(HEARTBEAT, FaultRule(Corrupt(part="truncate", bytes=2)))
    finished(made, HeartbeatResponse())
    assert made.damage(b"\0\0\0\x08" + b"abcdefgh") == b"\0\0\0\x06" + b"abcdef"


@pytest.mark.parametrize(("place", "found"), [("before", ["2"]), ("after", ["1"])])
def test_rules_are_found_by_action_and_place(place: str, found: list[str]) -> None:
    made = course(
        HEARTBEAT,
        FaultRule(Delay(delay_ms=1)),
        FaultRule(Hold()),
        FaultRule(Observe()),
    )
    finished(made, HeartbeatResponse())

    def of(place: str | None) -> list[str]:
        rules = (*made.rules(Delay, place), *made.rules(Hold, place))
        return [active.id for active, _ in rules]

    assert of(place) == found
    assert of(None) == ["1", "2"]


CODE = int(ErrorCode.UNKNOWN_SERVER_ERROR)
TOPIC = Meaning.TOPIC
PRODUCE = (int(ApiKey.PRODUCE), 9)


def codes_in(struct: Struct) -> list[int]:
    """All error codes of a response."""
    found: list[int] = []
    for item in type(struct).__fields__:
        value = getattr(struct, item.name)
        if item.name.endswith("error_code") and item.name != "topic_config_error_code":
            found.append(value)
        elif isinstance(item.kind, Array):
            found += [
                code for each in value or () if isinstance(each, Struct) for code in codes_in(each)
            ]
    return found


def plan_of(
    key: ApiKey,
    version: int,
    request: Struct,
    found: list[MessageEntity] | None = None,
    **more: Any,
) -> ErrorPlan | None:
    everything = entities(request, version)
    return plan_error(
        (int(key), version),
        request,
        everything if found is None else found,
        more.pop("selected", frozenset()),
        more.pop("code", CODE),
        all_found=len(everything),
        **more,
    )


@pytest.mark.parametrize(("key", "version"), list(served_versions()))
def test_every_response_can_have_an_error_and_be_encoded(key: ApiKey, version: int) -> None:
    request = request_of(key, version)
    plan = plan_of(key, version, request)
    if plan is None:
        assert (key, version < 3) == (ApiKey.DESCRIBE_LOG_DIRS, True)
        return
    response = cast("Message", error_response((int(key), version), plan, CODE))
    assert CODE in codes_in(response)
    cls = registry.schema(key).response
    data = encode(response, version)
    assert CODE in codes_in(decode(cls, version, data))


@pytest.mark.parametrize(("key", "version"), list(served_versions()))
def test_error_of_one_entity_leaves_others_in_the_request(key: ApiKey, version: int) -> None:
    request = request_of(key, version)
    everything = entities(request, version)
    first = everything[0]
    plan = plan_of(key, version, request, [first], selected=frozenset(first.keys))
    if plan is None or plan.is_whole:
        return
    remove_entities(request, [first])
    left = entities(request, version)
    assert [each.keys for each in left] == [each.keys for each in everything[1:]]
    response = error_response((int(key), version), plan, CODE)
    assert codes_in(response).count(CODE) == 1


def test_places_of_errors_follow_what_is_selected() -> None:
    def place(key: ApiKey, version: int, *selected: Meaning) -> list[str] | None:
        site = choose_site(key, version, frozenset(selected))
        return None if site is None else [array.name for array in site.arrays]

    assert place(ApiKey.OFFSET_FETCH, 8) == ["groups"]
    assert place(ApiKey.OFFSET_FETCH, 8, Meaning.GROUP) == ["groups"]
    assert place(ApiKey.OFFSET_FETCH, 8, TOPIC) == ["groups", "topics", "partitions"]
    assert place(ApiKey.OFFSET_FETCH, 7, Meaning.GROUP) == []
    assert place(ApiKey.OFFSET_COMMIT, 8, Meaning.GROUP) == ["topics", "partitions"]
    assert place(ApiKey.JOIN_GROUP, 9, Meaning.GROUP) == []
    assert place(ApiKey.FIND_COORDINATOR, 4, Meaning.GROUP) == ["coordinators"]
    assert place(ApiKey.FIND_COORDINATOR, 3, Meaning.GROUP) == []
    assert place(ApiKey.CREATE_ACLS, 3, Meaning.RESOURCE) == ["results"]


def test_fetch_has_errors_at_partitions_but_those_of_sessions() -> None:
    request = request_of(ApiKey.FETCH, 12)
    plan = plan_of(ApiKey.FETCH, 12, request, code=int(ErrorCode.OFFSET_OUT_OF_RANGE))
    assert plan is not None
    assert [array.name for array in plan.site.arrays] == ["responses", "partitions"]
    session = int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    plan = plan_of(ApiKey.FETCH, 12, request, code=session)
    assert plan is not None
    assert plan.site.arrays == ()
    whole = plan_of(ApiKey.FETCH, 12, request, whole=True)
    assert whole is not None
    assert whole.site.arrays == ()


def produce() -> ProduceRequest:
    partitions = [PartitionProduceData(index=0), PartitionProduceData(index=1)]
    return ProduceRequest(topic_data=[TopicProduceData(name="a", partition_data=partitions)])


def test_error_joins_the_response_to_the_rest() -> None:
    request = produce()
    found = entities(request, 9)
    plan = plan_of(ApiKey.PRODUCE, 9, request, found[:1], selected=frozenset({TOPIC}))
    assert plan is not None
    assert not plan.is_whole
    served = PartitionProduceResponse(index=1, base_offset=7)
    rest = ProduceResponse(responses=[TopicProduceResponse(name="a", partition_responses=[served])])
    response = error_response(PRODUCE, plan, 6, rest)
    assert isinstance(response, ProduceResponse)
    (topic,) = response.responses
    assert [
        (each.index, each.error_code, each.base_offset) for each in topic.partition_responses
    ] == [(1, 0, 7), (0, 6, -1)]


def test_error_after_the_work_replaces_the_true_answer() -> None:
    request = produce()
    plan = plan_of(ApiKey.PRODUCE, 9, request, entities(request, 9)[1:])
    assert plan is not None
    answers = [PartitionProduceResponse(index=index, base_offset=7) for index in (0, 1)]
    true = ProduceResponse(responses=[TopicProduceResponse(name="a", partition_responses=answers)])
    response = error_response(PRODUCE, plan, 7, true, is_complete=True)
    assert isinstance(response, ProduceResponse)
    found = response.responses[0].partition_responses
    assert [(each.index, each.error_code) for each in found] == [(0, 0), (1, 7)]


def test_results_by_position_keep_their_order() -> None:
    key, version = ApiKey.CREATE_ACLS, 3
    request = request_of(key, version)
    found = entities(request, version)
    plan = plan_of(key, version, request, found[:1], selected=frozenset({Meaning.RESOURCE}))
    assert plan is not None
    rest = CreateAclsResponse(results=[AclCreationResult(error_code=0)])
    response = error_response((int(key), version), plan, 5, rest)
    assert isinstance(response, CreateAclsResponse)
    assert [each.error_code for each in response.results] == [5, 0]
    both = CreateAclsResponse(results=[AclCreationResult(), AclCreationResult()])
    response = error_response((int(key), version), plan, 5, both, is_complete=True)
    assert isinstance(response, CreateAclsResponse)
    assert [each.error_code for each in response.results] == [5, 0]


def test_response_about_all_topics_fails_for_each_of_them() -> None:
    topics = [MetadataResponseTopic(name="a"), MetadataResponseTopic(name="b")]
    response = MetadataResponse(topics=topics)
    fail_everything((int(ApiKey.METADATA), 12), response, 5)
    assert [topic.error_code for topic in topics] == [5, 5]


def test_member_of_a_failed_request_is_in_the_response() -> None:
    request = request_of(ApiKey.JOIN_GROUP, 9)
    plan = plan_of(ApiKey.JOIN_GROUP, 9, request)
    assert plan is not None
    response: Any = error_response((int(ApiKey.JOIN_GROUP), 9), plan, 25)
    assert (response.member_id, response.generation_id) == ("n1", -1)


def test_sites_are_listed_from_the_outside() -> None:
    depths = [len(site.arrays) for site in error_sites(ApiKey.OFFSET_FETCH, 8)]
    assert depths == sorted(depths)

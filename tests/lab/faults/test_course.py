"""Rules that fired change the request and the response as they say."""

from __future__ import annotations

from typing import Any

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
from minibroker.lab.faults.course import NO_EFFECT, FaultCourse
from minibroker.lab.faults.fault_rule import ActiveRule, FaultRule
from minibroker.lab.faults.matching import ConnectionAttributes, Matcher
from minibroker.lab.faults.rulebook import Firing
from minibroker_protocol.headers import RequestHeader
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
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Struct

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

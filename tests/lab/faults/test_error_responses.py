"""Responses with errors have the entities of their requests, for every API and version."""

from __future__ import annotations

from typing import Any, cast

import pytest

from minibroker.lab.faults.error_responses import (
    ErrorPlan,
    choose_site,
    error_response,
    error_sites,
    fail_everything,
    plan_error,
    remove_entities,
)
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import MessageEntity, entities
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.create_acls import AclCreationResult, CreateAclsResponse
from minibroker_protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
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
from tests.lab.faults.messages import request_of, served_versions

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

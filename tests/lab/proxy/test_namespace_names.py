"""Names of a namespace in messages of all APIs and versions."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from minibroker.lab.proxy.exchange import UnexpectedFrame
from minibroker.lab.proxy.namespace_acls import ACL_APIS, is_about_acls
from minibroker.lab.proxy.namespace_names import (
    NAMES as NAME_MEANINGS,
)
from minibroker.lab.proxy.namespace_names import (
    NOT_OFFERED,
    PATTERNS,
    TRANSLATED,
    NamespaceNames,
)
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import marked_fields, marks, struct_in, values
from minibroker_protocol.headers import RequestHeader, encode_request_header
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.list_groups import ListedGroup, ListGroupsResponse
from minibroker_protocol.messages.list_transactions import ListTransactionsRequest
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Message
from tests.lab.proxy.conversation import conversation, request_frame
from tests.protocol.conftest import draw, project

NAMES = NamespaceNames("ns.")
OFFERED = [key for key in ApiKey if key not in NOT_OFFERED and key not in ACL_APIS]
"""All APIs whose messages are translated, also those that the broker does not serve."""
_OTHER_TEXTS = """
    assignment assignor_name client_host client_id client_software_name client_software_version
    cluster_id committed_metadata configuration_keys documentation entity_name entity_type feature
    group_instance_id group_state group_type host instance_id key leader log_dir match mechanism
    mechanisms member_id metadata name owner_principal_name owner_principal_type path principal_name
    principal_type process_id protocol_data protocol_name protocol_type rack rack_id reason
    requested_metrics server_assignor state_filters states_filter subtopology_id token_id
    token_requester_principal_name token_requester_principal_type transaction_state types_filter
    unknown_state_filters user value
"""
OTHER_TEXTS = frozenset(_OTHER_TEXTS.split())
"""Texts that are no names of a namespace. A ``name`` or ``key`` is that of a user or a config."""


def versions(messages: str) -> list[tuple[int, int]]:
    """All versions of the requests or responses of all offered APIs."""
    found = []
    for key in OFFERED:
        valid = getattr(registry.schema(key), messages).__versions__
        found += [(int(key), version) for version in range(valid.low, valid.high + 1)]
    return found


def texts(cls: Any) -> Iterator[tuple[Any, Any]]:
    for item in cls.__fields__:
        kind: Any = item.kind.element if isinstance(item.kind, Array) else item.kind
        if isinstance(kind, type):
            yield from texts(kind)
        elif "string" in kind.name:
            yield cls, item


def test_every_text_of_an_offered_api_is_translated_or_known() -> None:
    unknown = set()
    for key in OFFERED:
        schema = registry.schema(key)
        for message in (schema.request, schema.response):
            for cls, item in texts(message):
                valid = cls.__versions__ if issubclass(cls, Message) else message.__versions__
                translated = {
                    each.name
                    for version in range(valid.low, valid.high + 1)
                    for each in marked_fields(cls, version, TRANSLATED)
                }
                if item.name not in translated | OTHER_TEXTS:
                    unknown.add((cls.__name__, item.name))
    assert unknown == set()


NAME = "canary"
TOPIC_RESOURCE = 2


def may_name(cls: Any, item: Any) -> bool:
    """Whether a text is a name of a topic, a group or a transactional id, judged by its names."""
    if item.name in OTHER_TEXTS or "Config" in cls.__name__:
        return False
    words = ("topic", "group", "transactional", "coordinator", "resource")
    return any(word in f"{cls.__name__}.{item.name}".lower() for word in words)


def fill_with_names(struct: Any, version: int) -> int:
    """Set every text that may be a name to `NAME`; return how many there are."""
    count = 0
    for item in type(struct).__fields__:
        is_array = isinstance(item.kind, Array)
        kind: Any = item.kind.element if is_array else item.kind
        if not item.versions.has(version):
            continue
        if isinstance(kind, type):
            value: Any = kind()
            count += fill_with_names(value, version)
        elif "string" in kind.name and may_name(type(struct), item):
            value = NAME
            count += 1
        elif item.name == "resource_type":
            value = TOPIC_RESOURCE
        else:
            continue
        setattr(struct, item.name, [value] if is_array else value)
    return count


@pytest.mark.parametrize("key", ApiKey)
def test_every_name_in_a_request_has_the_prefix_at_the_broker(key: ApiKey) -> None:
    cls = registry.schema(key).request
    for version in range(cls.__versions__.low, cls.__versions__.high + 1):
        message = cls()
        count = fill_with_names(message, version)
        frame = request_frame(message, version)
        assert frame.count(NAME.encode()) == count
        if key in NOT_OFFERED:
            with pytest.raises(UnexpectedFrame):
                NAMES.request(key, version, frame)
        elif is_about_acls(key, version):
            assert count  # They are served by `NamespaceAcls`.
        else:
            passed = NAMES.request(key, version, frame)
            prefixed = [f"ns.{NAME}".encode(), rf"ns\.(?:{NAME})".encode()]
            assert passed.count(NAME.encode()) == count
            assert sum(map(passed.count, prefixed)) == count


def without_patterns(struct: Any, version: int) -> None:
    """Remove regular expressions, which are not translated back."""
    for mark in marks(struct, version, PATTERNS):
        mark.replace(None)


@given(data=st.data())
def test_translation_there_and_back_changes_nothing(data: st.DataObject) -> None:
    key, version = data.draw(st.sampled_from(versions("request")))
    schema = registry.schema(key)
    for cls in (schema.request, schema.response):
        message = project(data.draw(draw(cls)), version)
        without_patterns(message, version)
        before = copy.deepcopy(message)
        NAMES.to_broker(message, version)
        if isinstance(message, DescribeTopicPartitionsRequest):
            message.cursor = before.cursor  # type: ignore[attr-defined]
        NAMES.to_client(message, version)
        assert message == before


@given(data=st.data())
def test_response_names_nothing_of_another_namespace(data: st.DataObject) -> None:
    key, version = data.draw(st.sampled_from(versions("response")))
    message = project(data.draw(draw(registry.schema(key).response)), version)
    NamespaceNames("other.").to_broker(message, version)
    NAMES.to_client(message, version)
    assert [name for name in values(message, version, NAME_MEANINGS) if name] == []


@pytest.mark.parametrize("key", OFFERED)
def test_responses_have_no_name_outside_of_arrays(key: ApiKey) -> None:
    cls = registry.schema(key).response
    for version in range(cls.__versions__.low, cls.__versions__.high + 1):
        found = marked_fields(cls, version, TRANSLATED)
        assert {item.means for item in found if struct_in(item) is None} <= {Meaning.MESSAGE}


def test_own_entries_remain() -> None:
    topics = [MetadataResponseTopic(name=name) for name in ("ns.a", "b", "ns2.c", "", "ns.ns.d")]
    response = MetadataResponse(topics=topics)
    NAMES.to_client(response, 12)
    assert [topic.name for topic in response.topics] == ["a", "", "ns.d"]
    groups = ListGroupsResponse(groups=[ListedGroup(group_id="g"), ListedGroup(group_id="ns.g")])
    NAMES.to_client(groups, 4)
    assert [group.group_id for group in groups.groups] == ["g"]


def test_error_texts_do_not_show_the_prefix() -> None:
    result = CreatableTopicResult(name="ns.t", error_message="Topic 'ns.t' already exists.")
    response = CreateTopicsResponse(topics=[result])
    NAMES.to_client(response, 7)
    assert response.topics[0].error_message == "Topic 't' already exists."


def test_only_topics_and_groups_are_named_resources() -> None:
    kinds = (2, 32, 4, 8)
    resources = [DescribeConfigsResource(resource_type=kind, resource_name="0") for kind in kinds]
    request = DescribeConfigsRequest(resources=resources)
    NAMES.to_broker(request, 4)
    assert [each.resource_name for each in request.resources] == ["ns.0", "ns.0", "0", "0"]


def test_patterns_match_names_of_the_namespace_only() -> None:
    listed = ListTransactionsRequest(transactional_id_pattern="a|b")
    NAMES.to_broker(listed, 2)
    assert listed.transactional_id_pattern == r"ns\.(?:a|b)"
    beat = ConsumerGroupHeartbeatRequest(group_id="g", subscribed_topic_regex="")
    NAMES.to_broker(beat, 1)
    assert (beat.group_id, beat.subscribed_topic_regex) == ("ns.g", "")


def test_description_of_all_topics_starts_at_those_of_the_namespace() -> None:
    request = DescribeTopicPartitionsRequest()
    NAMES.to_broker(request, 0)
    assert request.cursor is not None
    assert (request.cursor.topic_name, request.cursor.partition_index) == ("ns.", 0)
    response = DescribeTopicPartitionsResponse(next_cursor=request.cursor)
    assert response.next_cursor is not None
    response.next_cursor.topic_name = "nt"
    NAMES.to_client(response, 0)
    assert response.next_cursor is None


def test_api_that_is_not_offered_is_refused() -> None:
    for key in NOT_OFFERED:
        frame = encode_request_header(RequestHeader(key, 1, 1, "c"))
        with pytest.raises(UnexpectedFrame, match="is not offered in a namespace"):
            NAMES.request(key, 1, frame)


def test_frames_without_names_and_of_unknown_apis_stay_as_they_are() -> None:
    for key, version in ((5000, 0), (ApiKey.METADATA, 99), (ApiKey.SASL_HANDSHAKE, 1)):
        assert NAMES.request(key, version, b"x") == b"x"
        assert NAMES.response(key, version, b"x") == b"x"


async def test_client_sees_its_namespace_through_a_connection() -> None:
    async with conversation() as at:
        at.namespace = NAMES
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        await at.send(request, 12)
        _, taken = await at.taken()
        assert [topic.name for topic in taken.topics] == ["ns.t"]
        topics = [MetadataResponseTopic(name="ns.t"), MetadataResponseTopic(name="other")]
        await at.answer(MetadataResponse(topics=topics), 12)
        assert [topic.name for topic in (await at.receive(request, 12)).topics] == ["t"]
        hello = ApiVersionsRequest(client_software_name="c", client_software_version="1")
        await at.send(hello, 3, 2)
        await at.taken()
        keys = [ApiVersion(api_key=key, max_version=1) for key in (ApiKey.FETCH, *NOT_OFFERED)]
        await at.answer(ApiVersionsResponse(api_keys=keys), 3, 2)
        assert [each.api_key for each in (await at.receive(hello, 3)).api_keys] == [ApiKey.FETCH]


async def test_malformed_request_ends_the_connection() -> None:
    async with conversation() as at:
        at.namespace = NAMES
        frame = request_frame(HeartbeatRequest(group_id="g", member_id="m"), 4)
        await at.send_frame(frame[:-6])
        await wait_all_tasks_blocked()
        assert await at.receive_frame() is None
        assert at.connection.end.is_problem


def test_encoded_frames_are_translated() -> None:
    request = HeartbeatRequest(group_id="g", member_id="m")
    frame = NAMES.request(ApiKey.HEARTBEAT, 4, request_frame(request, 4))
    start = len(encode_request_header(RequestHeader(ApiKey.HEARTBEAT, 4, 1, "client")))
    assert decode(HeartbeatRequest, 4, frame, start).group_id == "ns.g"
    assert encode(decode(HeartbeatRequest, 4, frame, start), 4) == frame[start:]

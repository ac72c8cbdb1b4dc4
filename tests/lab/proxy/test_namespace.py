"""Names of a namespace in messages of all APIs and versions."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.apis.acls import APIS
from minibroker.broker.apis.base import ServedApi
from minibroker.broker.metadata.acls import (
    plan_acl_creation,
    plan_acl_deletion,
)
from minibroker.broker.metadata.image import Image
from minibroker.broker.security.acl import (
    AclRule,
    Acls,
    Operation,
    Pattern,
    PatternType,
    Permission,
    Resource,
)
from minibroker.lab.namespaces import NAMES as NAME_MEANINGS
from minibroker.lab.namespaces import PATTERNS, TRANSLATED
from minibroker.lab.proxy.exchange import UnexpectedFrame
from minibroker.lab.proxy.namespace import (
    ACL_APIS,
    NAMED_RESOURCES,
    NOT_OFFERED,
    NamespaceAcls,
    NamespaceNames,
    is_about_acls,
)
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import marked_fields, marks, struct_in, values
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.create_acls import AclCreation, CreateAclsRequest
from minibroker_protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from minibroker_protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from minibroker_protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest
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
from minibroker_protocol.wire import RequestHeader, encode_request_header
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
    requested_metrics server_assignor state_filters states_filter stores subtopology_id successors
    token_id token_requester_principal_name token_requester_principal_type transaction_state
    types_filter unknown_state_filters user value
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


ACLS = NamespaceAcls("ns.")
EVERYTHING: Any = {
    "resource_type_filter": Resource.ANY,
    "resource_name_filter": None,
    "pattern_type_filter": PatternType.ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": Operation.ANY,
    "permission_type": Permission.ANY,
}
RULE = AclRule("User:a", "*", Operation.READ, Permission.ALLOW)
FOREIGN = {
    Pattern(Resource.TOPIC, "orders"): (RULE,),
    Pattern(Resource.TOPIC, "*"): (RULE,),
    Pattern(Resource.TOPIC, "n", PatternType.PREFIXED): (RULE,),
    Pattern(Resource.TOPIC, "ns2.orders"): (RULE,),
    Pattern(Resource.GROUP, "ns.*"): (RULE,),
    Pattern(Resource.GROUP, "other.", PatternType.PREFIXED): (RULE,),
    Pattern(Resource.CLUSTER, "kafka-cluster"): (RULE,),
    Pattern(Resource.USER, "ns.user"): (RULE,),
}


class BrokerWithAcls:
    """Answers requests about ACLs from a set of its own, by the rules of the broker."""

    def __init__(self, acls: Acls, *, enabled: bool = True) -> None:
        self.acls: dict[Pattern, tuple[AclRule, ...]] = dict(acls)
        self.asked: list[Message] = []
        self._enabled = enabled

    async def ask(self, request: Message) -> Any:
        self.asked.append(request)
        context: Any = SimpleNamespace(
            image=self.image,
            authorizer=self._enabled or None,
            header=SimpleNamespace(client_id=None),
            version=3,
            caller=None,
            wall_ms=0,
        )
        apis: tuple[ServedApi, ...] = APIS
        [api] = (each for each in apis if each.key == type(request).__api_key__)
        scope: Any = SimpleNamespace(cluster=self, publish=self._publish)
        replies = {}
        for owner, part in api.split(context, request).items():
            assert api.execute_at_controller is not None
            replies[owner] = await api.execute_at_controller(scope, part)
        return api.merge(context, request, replies)

    @property
    def image(self) -> Image:
        return Image(acls=self.acls)

    async def create_acls(self, bindings: Any) -> Any:
        return plan_acl_creation(self.image, bindings)

    async def delete_acls(self, filters: Any) -> Any:
        return plan_acl_deletion(self.image, filters)

    async def _publish(self, changes: Any) -> None:
        self.acls |= {change.pattern: change.rules for change in changes}
        self.acls = {pattern: rules for pattern, rules in self.acls.items() if rules}


RESOURCE_NAMES = st.sampled_from(["orders", "ord", "o", "*", "ns.", "x*", ""])
RULES = {
    "principal": st.sampled_from(["User:a", "User:b", "nobody"]),
    "host": st.sampled_from(["*", "10.0.0.1", ""]),
}
CREATIONS = st.builds(
    AclCreation,
    resource_type=st.sampled_from([*sorted(NAMED_RESOURCES), Resource.ANY, 99]),
    resource_name=RESOURCE_NAMES,
    resource_pattern_type=st.integers(0, 5),
    operation=st.integers(1, 4),
    permission_type=st.integers(1, 3),
    **RULES,
)
FILTER_FIELDS = {
    "resource_type_filter": st.integers(0, 8),
    "resource_name_filter": st.none() | RESOURCE_NAMES,
    "pattern_type_filter": st.integers(0, 5),
    "principal_filter": st.none() | RULES["principal"],
    "host_filter": st.none() | RULES["host"],
    "operation": st.integers(0, 4),
    "permission_type": st.integers(0, 4),
}
REQUESTS = st.one_of(
    st.builds(CreateAclsRequest, creations=st.lists(CREATIONS, max_size=8)),
    st.builds(DescribeAclsRequest, **FILTER_FIELDS),
    st.builds(
        DeleteAclsRequest,
        filters=st.lists(st.builds(DeleteAclsFilter, **FILTER_FIELDS), max_size=3),
    ),
)


def run(request: Message, broker: BrokerWithAcls) -> Any:
    """The response to a request in the namespace."""
    return trio.run(ACLS.serve, copy.deepcopy(request), broker.ask)


@given(requests=st.lists(REQUESTS, min_size=2, max_size=8))
def test_namespace_is_like_a_broker_of_its_own(requests: list[Message]) -> None:
    shared, alone = BrokerWithAcls(FOREIGN), BrokerWithAcls({})
    for request in requests:
        expected = trio.run(alone.ask, request)
        assert run(request, shared) == expected
        own = {ACLS.at_client(pattern): rules for pattern, rules in shared.acls.items()}
        own.pop(None, None)
        assert own == alone.acls
        assert shared.acls.items() >= FOREIGN.items()


@pytest.mark.parametrize(
    ("name", "kind", "at_broker"),
    [
        ("orders", PatternType.LITERAL, ("ns.orders", PatternType.LITERAL)),
        ("or", PatternType.PREFIXED, ("ns.or", PatternType.PREFIXED)),
        ("*", PatternType.LITERAL, ("ns.", PatternType.PREFIXED)),
        ("*", PatternType.PREFIXED, ("ns.*", PatternType.PREFIXED)),
        ("", PatternType.PREFIXED, ("", PatternType.PREFIXED)),
    ],
)
def test_patterns_have_the_prefix(name: str, kind: int, at_broker: tuple[str, int]) -> None:
    assert ACLS.at_broker(name, kind) == at_broker


def test_acls_of_shared_resources_are_rejected_and_others_created() -> None:
    types = (Resource.CLUSTER, Resource.TOPIC, Resource.USER, Resource.DELEGATION_TOKEN)
    request = CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=each,
                resource_name="kafka-cluster",
                principal="User:a",
                host="*",
                operation=Operation.READ,
                permission_type=Permission.ALLOW,
            )
            for each in types
        ]
    )
    broker = BrokerWithAcls({})
    results = run(request, broker).results
    assert [each.error_code for each in results] == [ErrorCode.INVALID_REQUEST, 0, 42, 42]
    assert "topics, groups and transactional ids" in results[0].error_message
    assert list(broker.acls) == [Pattern(Resource.TOPIC, "ns.kafka-cluster")]
    request.creations = request.creations[:1]
    assert [each.error_code for each in run(request, broker).results] == [42]
    assert len(broker.asked) == 1


def test_broker_without_authorizer_says_so() -> None:
    requests = (
        DescribeAclsRequest(**EVERYTHING),
        DeleteAclsRequest(filters=[DeleteAclsFilter(**EVERYTHING)] * 2),
        CreateAclsRequest(creations=[AclCreation(resource_type=2, resource_name="t")]),
    )
    described, deleted, created = (
        run(each, BrokerWithAcls({}, enabled=False)) for each in requests
    )
    disabled = ErrorCode.SECURITY_DISABLED
    assert described.error_code == disabled
    assert [each.error_code for each in deleted.filter_results] == [disabled] * 2
    assert [each.error_code for each in created.results] == [disabled]


def test_failed_deletion_is_reported_for_each_acl() -> None:
    broker = BrokerWithAcls({Pattern(Resource.TOPIC, "ns.t"): (RULE,)})

    async def ask(request: Message) -> Any:
        if isinstance(request, DescribeAclsRequest):
            return await broker.ask(request)
        failed = DeleteAclsFilterResult(
            error_code=int(ErrorCode.REQUEST_TIMED_OUT), error_message="late"
        )
        return DeleteAclsResponse(filter_results=[failed])

    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**EVERYTHING)] * 2)
    response: Any = trio.run(ACLS.serve, request, ask)
    for result in response.filter_results:
        [acl] = result.matching_acls
        assert (acl.error_code, acl.error_message) == (ErrorCode.REQUEST_TIMED_OUT, "late")
        assert acl.resource_name == "t"


async def test_acls_are_served_on_a_connection() -> None:
    async with conversation() as at:
        at.namespace = NamespaceNames("ns.")
        await at.send(describe := DescribeAclsRequest(**EVERYTHING), 3, 7)
        header, asked = await at.taken()
        assert (header.api_key, header.correlation_id, header.client_id) == (29, 7, "client")
        broker = BrokerWithAcls({Pattern(Resource.GROUP, "ns.", PatternType.PREFIXED): (RULE,)})
        await at.answer(await broker.ask(asked), 3, 7)
        [found] = (await at.receive(describe, 3)).resources
        assert (found.resource_name, found.pattern_type) == ("*", PatternType.LITERAL)
        delete = DeleteAclsRequest(filters=[DeleteAclsFilter(**EVERYTHING)])
        await at.send(delete, 2, 8)
        for key in (29, 31):
            header, asked = await at.taken()
            assert (header.api_key, header.api_version) == (key, 2)
            await at.answer(await broker.ask(asked), 2, 8)
        [result] = (await at.receive(delete, 2)).filter_results
        assert [each.resource_name for each in result.matching_acls] == ["*"]
        assert broker.acls == {}


async def test_requests_about_acls_wait_for_those_before_and_hold_those_after() -> None:
    async with conversation() as at:
        at.namespace = NamespaceNames("ns.")
        first, last = MetadataRequest(topics=[]), DescribeClusterRequest()
        await at.send(first, 12, 1)
        await at.send(describe := DescribeAclsRequest(**EVERYTHING), 3, 2)
        await at.send(last, 0, 3)
        await at.taken()
        await wait_all_tasks_blocked()
        assert at.broker.unread() == 0
        await at.answer(MetadataResponse(), 12, 1)
        await at.receive(first, 12)
        await at.taken()
        await wait_all_tasks_blocked()
        assert at.broker.unread() == 0
        await at.answer(DescribeAclsResponse(error_message=None), 3, 2)
        await at.receive(describe, 3)
        header, _ = await at.taken()
        assert header.correlation_id == 3

"""ACLs in a namespace, compared with a broker that the client has for itself."""

from __future__ import annotations

import copy
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
from minibroker.lab.proxy.namespace_acls import NAMED_RESOURCES, NamespaceAcls
from minibroker.lab.proxy.namespace_names import NamespaceNames
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_acls import AclCreation, CreateAclsRequest
from minibroker_protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from minibroker_protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker_protocol.schema import Message
from tests.lab.proxy.conversation import conversation

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


NAMES = st.sampled_from(["orders", "ord", "o", "*", "ns.", "x*", ""])
RULES = {
    "principal": st.sampled_from(["User:a", "User:b", "nobody"]),
    "host": st.sampled_from(["*", "10.0.0.1", ""]),
}
CREATIONS = st.builds(
    AclCreation,
    resource_type=st.sampled_from([*sorted(NAMED_RESOURCES), Resource.ANY, 99]),
    resource_name=NAMES,
    resource_pattern_type=st.integers(0, 5),
    operation=st.integers(1, 4),
    permission_type=st.integers(1, 3),
    **RULES,
)
FILTER_FIELDS = {
    "resource_type_filter": st.integers(0, 8),
    "resource_name_filter": st.none() | NAMES,
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

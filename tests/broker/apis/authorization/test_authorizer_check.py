"""Guards: none without an authorizer, a request's own way with one."""

from __future__ import annotations

from minibroker.broker.apis.authorization.authorizer_check import allow_all, allowed, authorized
from minibroker.broker.apis.operations import TOPIC_OPERATIONS
from minibroker.broker.security.acl import Operation, Resource
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest
from tests.broker.apis.authorization.callers import ALICE, ROOT, SETTINGS, ask_as, grant
from tests.broker.apis.conftest import ApisMaker


async def test_allowed_splits_names_by_authorization_and_keeps_null_names(
    make_apis: ApisMaker,
) -> None:
    apis = await make_apis(*SETTINGS)
    await grant(apis, Resource.TOPIC, "cats", Operation.READ)
    apis.principal = ALICE
    ctx = apis.context(0, 0)
    names = ["cats", "dogs", None, "cats"]
    assert allowed(ctx, Operation.READ, Resource.TOPIC, names, lambda name: name) == (
        ["cats", None, "cats"],
        ["dogs"],
    )
    allow_all(ctx, None)
    assert ctx.finish is None
    assert authorized(ctx, Resource.TOPIC, "cats") == 1 << Operation.READ | 1 << Operation.DESCRIBE
    apis.principal = ROOT
    assert authorized(apis.context(0, 0), Resource.TOPIC, "dogs") == TOPIC_OPERATIONS


async def test_cluster_authorized_operations_follow_acls(make_apis: ApisMaker) -> None:
    apis = await make_apis(*SETTINGS)
    await grant(apis, Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE)
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = await ask_as(apis, ALICE, request, 0)
    assert response.cluster_authorized_operations == 1 << Operation.DESCRIBE

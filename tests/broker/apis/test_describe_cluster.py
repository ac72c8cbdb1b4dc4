"""DescribeCluster: brokers of the image, for brokers' endpoints only."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.describe_cluster import API
from minibroker.broker.apis.operations import CLUSTER_OPERATIONS, NOT_ASKED
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest


@pytest.mark.parametrize("version", range(3))
async def test_cluster_is_described_with_listener_address(make_apis: Any, version: int) -> None:
    apis = await make_apis("broker.rack=r1")
    response = await apis.ask(API, DescribeClusterRequest(), version, listener="OUTSIDE")
    assert apis.asked == {}
    assert response.error_code == ErrorCode.NONE
    assert response.cluster_id == apis.cluster.image.cluster_id
    assert response.controller_id == 1
    [broker] = response.brokers
    assert (broker.broker_id, broker.host, broker.port, broker.rack) == (
        1,
        "example.test",
        19092,
        "r1",
    )
    assert not broker.is_fenced
    assert response.cluster_authorized_operations == NOT_ASKED


async def test_authorized_operations_are_included_if_requested(apis: Any) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = await apis.ask(API, request, 0)
    assert response.cluster_authorized_operations == CLUSTER_OPERATIONS


@pytest.mark.parametrize(
    ("kind", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_other_endpoint_type_is_rejected(apis: Any, kind: int, code: ErrorCode) -> None:
    response = await apis.ask(API, DescribeClusterRequest(endpoint_type=kind), 1)
    assert response.error_code == code
    assert response.brokers == []

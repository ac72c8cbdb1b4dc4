"""DescribeCluster (60): the brokers, the controller and the cluster's id.

Versions 0-2. Brokers are listed with their endpoints on the listener of the request. From version 1
on the client sends the expected endpoint type, which here is always a broker. No broker is ever
fenced, so including fenced ones (version 2) adds none. In Kafka:
``AuthHelper.computeDescribeClusterResponse``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import SPECIAL, Context, without_owner
from minibroker.broker.apis.operations import CLUSTER_OPERATIONS, NOT_ASKED
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from minibroker_protocol.registry import ApiKey

BROKERS = 1
CONTROLLERS = 2


def answer(ctx: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Describe the cluster from the image."""
    if request.endpoint_type != BROKERS:
        known = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            ),
            error_message=(
                f"This is an endpoint of brokers ({BROKERS}), not of type {request.endpoint_type}."
            ),
        )
    operations = NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = CLUSTER_OPERATIONS
    return DescribeClusterResponse(
        cluster_id=ctx.image.cluster_id,
        controller_id=ctx.image.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.broker_id, host=host, port=port, rack=broker.rack
            )
            for broker, host, port in ctx.image.brokers_at(ctx.caller.listener)
        ],
        cluster_authorized_operations=operations,
    )


API = without_owner(
    answer,
    key=ApiKey.DESCRIBE_CLUSTER,
    versions=(0, 2),
    requires=SPECIAL,
)

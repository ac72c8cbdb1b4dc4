"""FindCoordinator (10): find the broker that coordinates a group.

Versions 0-6, with several keys since version 4. The coordinator of a group is the leader of its
partition of ``__consumer_offsets``; the response contains its endpoint on the listener of the
request. The image has this data, so no worker is involved. Kafka's counterpart is
``KafkaApis.handleFindCoordinatorRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from minibroker.apis.base import Api, Context, Owner
from minibroker.apis.unserved import SHARE_GROUPS, TRANSACTIONS, Unserved
from minibroker.cluster.placement import OFFSETS_TOPIC, offsets_partition
from minibroker.config import OFFSETS_TOPIC_NUM_PARTITIONS
from protocol.errors import ErrorCode
from protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from protocol.registry import ApiKey

GROUP: Final = 0
KEY_TYPES: Final = {GROUP: "groups", 1: "transactions", 2: "share groups"}
UNSERVED: Final[Mapping[int, Unserved]] = {1: TRANSACTIONS, 2: SHARE_GROUPS}


class CoordinatorNode(NamedTuple):
    """The endpoint of a broker, or an error with its message."""

    node_id: int = -1
    host: str = ""
    port: int = -1
    error: int = ErrorCode.NONE
    text: str | None = None


def split(_ctx: Context, _request: FindCoordinatorRequest) -> Mapping[Owner, None]:
    """No worker is involved."""
    return {}


def merge(
    ctx: Context, request: FindCoordinatorRequest, _replies: Mapping[Owner, None]
) -> FindCoordinatorResponse:
    """Find the coordinator of each key in the image."""
    if ctx.version < 4:
        node = _find(ctx, request.key_type, request.key)
        return FindCoordinatorResponse(
            error_code=node.error,
            error_message=node.text,
            node_id=node.node_id,
            host=node.host,
            port=node.port,
        )
    return FindCoordinatorResponse(
        coordinators=[
            _coordinator(key, _find(ctx, request.key_type, key)) for key in request.coordinator_keys
        ]
    )


def _coordinator(key: str, node: CoordinatorNode) -> Coordinator:
    return Coordinator(
        key=key,
        node_id=node.node_id,
        host=node.host,
        port=node.port,
        error_code=node.error,
        error_message=node.text,
    )


def _find(ctx: Context, key_type: int, key: str) -> CoordinatorNode:
    if key_type != GROUP:
        ctx.unserved = UNSERVED.get(key_type)
        what = KEY_TYPES.get(key_type)
        text = f"This broker does not serve {what} yet." if what else _unknown_type(key_type)
        return CoordinatorNode(error=ErrorCode.INVALID_REQUEST, text=text)
    index = offsets_partition(key, ctx.settings[OFFSETS_TOPIC_NUM_PARTITIONS])
    partition = ctx.image.partition(OFFSETS_TOPIC, index)
    leader = None if partition is None else ctx.image.brokers.get(partition.leader)
    endpoint = None if leader is None else leader.endpoints.get(ctx.caller.listener)
    if leader is None or endpoint is None:
        text = f"{OFFSETS_TOPIC}-{index}, which stores this group, has no reachable leader."
        return CoordinatorNode(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, text=text)
    return CoordinatorNode(leader.broker_id, *endpoint)


def _unknown_type(key_type: int) -> str:
    known = ", ".join(f"{number} for {what}" for number, what in KEY_TYPES.items())
    return f"Key type {key_type} is unknown; Kafka defines {known}."


API: Api[FindCoordinatorRequest, None, None, FindCoordinatorResponse] = Api(
    key=ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    split=split,
    merge=merge,
    left_out=(
        "key type 1, transactions: none are coordinated yet; INVALID_REQUEST says so",
        "key type 2, share groups: none are coordinated yet; INVALID_REQUEST says so",
    ),
)

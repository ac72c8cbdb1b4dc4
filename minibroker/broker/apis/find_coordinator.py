"""FindCoordinator (10): find the broker that coordinates a group or a transactional id.

Versions 0-6, with several keys since version 4, and share partitions since version 6. The
coordinator is the leader of the key's partition of ``__consumer_offsets``, ``__transaction_state``
or ``__share_group_state``; the response contains its endpoint on the listener of
the request. The image has this data, so no worker is involved; the first request for a
transactional id or a share partition creates its topic. Kafka's counterpart is
``KafkaApis.handleFindCoordinatorRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from minibroker.broker.apis.base import (
    CONTROLLER,
    SPECIAL,
    Api,
    Caller,
    Context,
    ControllerScope,
    Owner,
    SingleForm,
    SingleScope,
)
from minibroker.broker.metadata.image import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    offsets_partition,
    share_state_partition,
    transaction_partition,
)
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.settings import (
    OFFSETS_TOPIC_NUM_PARTITIONS,
    SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS,
    TRANSACTION_STATE_LOG_NUM_PARTITIONS,
)
from minibroker.broker.shares.state import is_share_key
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from minibroker_protocol.registry import ApiKey

if TYPE_CHECKING:
    from minibroker.broker.metadata.image import Image
    from minibroker.broker.settings import Settings

GROUP: Final = 0
TRANSACTION: Final = 1
SEVERAL_KEYS_SINCE: Final = 4
SHARE: Final = 2
SHARE_SINCE: Final = 6
KEY_TYPES: Final = {GROUP: "groups", TRANSACTION: "transactions", SHARE: "share partitions"}
_CREATED_TOPICS: Final[Mapping[int, str]] = {
    TRANSACTION: TRANSACTION_STATE_TOPIC,
    SHARE: SHARE_STATE_TOPIC,
}
"""The topics that are created when a client first looks for a coordinator."""


class CoordinatorNode(NamedTuple):
    """The endpoint of a broker, or an error with its message."""

    node_id: int = -1
    host: str = ""
    port: int = -1
    error: int = ErrorCode.NONE
    text: str | None = None


def split(ctx: Context, request: FindCoordinatorRequest) -> Mapping[Owner, str]:
    """No worker is involved; the controller creates a topic that is missing."""
    topic = _CREATED_TOPICS.get(request.key_type)
    has_keys = ctx.version < SEVERAL_KEYS_SINCE or request.coordinator_keys
    is_needed = topic is not None and has_keys and topic not in ctx.image.topics
    return {CONTROLLER: topic} if is_needed and topic is not None else {}


async def execute_at_controller(scope: ControllerScope, topic: str) -> None:
    """Create the topic of states."""
    outcome = await scope.cluster.create_topics([NewTopic(topic)])
    await scope.publish(outcome.updates)


def merge(
    ctx: Context, request: FindCoordinatorRequest, _replies: Mapping[Owner, None]
) -> FindCoordinatorResponse:
    """Find the coordinator of each key in the image."""
    if ctx.version < SEVERAL_KEYS_SINCE:
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
    if key_type not in KEY_TYPES:
        return CoordinatorNode(error=ErrorCode.INVALID_REQUEST, text=_unknown_type(key_type))
    if key_type == SHARE and (ctx.version < SHARE_SINCE or not is_share_key(key)):
        text = (
            f"{key!r} is not the key of a share partition: group, topic id and partition, "
            f"separated by colons, since version {SHARE_SINCE}."
        )
        return CoordinatorNode(error=ErrorCode.INVALID_REQUEST, text=text)
    return _find_leader(ctx.image, ctx.settings, ctx.caller, key_type, key)


def _find_leader(
    image: Image, settings: Settings, caller: Caller, key_type: int, key: str
) -> CoordinatorNode:
    topic = OFFSETS_TOPIC
    index = offsets_partition(key, settings[OFFSETS_TOPIC_NUM_PARTITIONS])
    if key_type == TRANSACTION:
        topic = TRANSACTION_STATE_TOPIC
        index = transaction_partition(key, settings[TRANSACTION_STATE_LOG_NUM_PARTITIONS])
    elif key_type == SHARE:
        topic = SHARE_STATE_TOPIC
        index = share_state_partition(key, settings[SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS])
    partition = image.partition(topic, index)
    leader = None if partition is None else image.brokers.get(partition.leader)
    endpoint = leader and leader.endpoint(caller.listener, caller.connected_to)
    if leader is None or endpoint is None:
        text = f"{topic}-{index}, which stores this key, has no reachable leader."
        return CoordinatorNode(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, text=text)
    return CoordinatorNode(leader.broker_id, *endpoint)


def _unknown_type(key_type: int) -> str:
    known = ", ".join(f"{number} for {what}" for number, what in KEY_TYPES.items())
    return f"Key type {key_type} is unknown; Kafka defines {known}."


def execute_single(
    scope: SingleScope, version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Find the coordinator of one key, unless its topic must be created first."""
    older_key, key_type, key = request
    if version < SEVERAL_KEYS_SINCE:
        key = older_key
    if key_type != GROUP and not (
        key_type == TRANSACTION and TRANSACTION_STATE_TOPIC in scope.image.topics
    ):
        return None
    node = _find_leader(scope.image, scope.worker.settings, scope.caller, key_type, key)
    if node.error:
        return None
    endpoint = node.node_id, node.host, node.port
    if version < SEVERAL_KEYS_SINCE:
        return 0, ErrorCode.NONE, None, *endpoint, "", 0, "", 0, ErrorCode.NONE, None
    return 0, ErrorCode.NONE, None, 0, "", 0, key, *endpoint, ErrorCode.NONE, None


SINGLE: Final = SingleForm(Shape(frozenset({"coordinator_keys", "coordinators"})), execute_single)

API = Api(
    key=ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    requires=SPECIAL,
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
    single=SINGLE,
)

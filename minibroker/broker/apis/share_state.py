"""The requests of brokers for the states of share partitions (83 to 87, KIP-932).

Create, read, write, delete and summarize states in ``__share_group_state``. The workers of the
broker send their operations in the same parts. A request without topics, without partitions of one
of them or without a group gets an empty response, as from Kafka. Kafka's
``ShareCoordinatorService``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from minibroker.broker.apis.base import (
    Api,
    Context,
    Owner,
    Requires,
    WorkerScope,
    all_results,
)
from minibroker.broker.metadata.image import (
    SHARE_STATE_TOPIC,
    partition_owner,
    share_state_partition,
)
from minibroker.broker.security.acl import Operation
from minibroker.broker.settings import SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS
from minibroker.broker.shares.state import UNKNOWN_OFFSET, ShareKey, ShareState, StateBatch
from minibroker.broker.shares.state_store import (
    DeleteState,
    InitializeState,
    ReadState,
    StateOperation,
    StateReply,
    SummarizeState,
    WriteState,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from minibroker_protocol.registry import ApiKey

StatePart = tuple[StateOperation, ...]
StateResults = dict[ShareKey, StateReply]

_ToOperation = Callable[[ShareKey, Any], StateOperation]
_ToResult = Callable[[int, StateReply], Any]


def _execute(scope: WorkerScope, part: StatePart) -> StateResults:
    return {operation.key: scope.handle_state(operation) for operation in part}


def _state_api(
    key: ApiKey,
    messages: Any,
    prefix: str,
    *,
    highest: int = 0,
    to_operation: _ToOperation,
    to_result: _ToResult,
) -> Api[Any, StatePart, StateResults, Any]:
    """The API of one operation, with the classes of its module of messages."""
    name = prefix.replace("State", "ShareGroupState")
    response_class = getattr(messages, f"{name}Response")
    topic_class = getattr(messages, f"{prefix}Result")

    def split(ctx: Context, request: Any) -> Mapping[Owner, StatePart]:
        parts: dict[Owner, StatePart] = {}
        for operation in _operations(request, to_operation):
            index = share_state_partition(
                operation.key.text, ctx.settings[SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS]
            )
            owner = partition_owner(SHARE_STATE_TOPIC, index, ctx.workers)
            parts[owner] = (*parts.get(owner, ()), operation)
        return parts

    def respond(request: Any, reply: Callable[[ShareKey], StateReply]) -> Any:
        if not _is_complete(request):
            return response_class()
        return response_class(
            results=[
                topic_class(
                    topic_id=topic.topic_id,
                    partitions=[
                        to_result(
                            each.partition,
                            reply(ShareKey(request.group_id, topic.topic_id, each.partition)),
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def merge(_ctx: Context, request: Any, replies: Mapping[Owner, StateResults]) -> Any:
        found = all_results(replies)
        return respond(request, found.__getitem__)

    def refuse(request: Any, error: ErrorCode) -> Any:
        return respond(request, lambda _key: StateReply(error))

    return Api(
        key=key,
        versions=(0, highest),
        requires=(Requires(Operation.CLUSTER_ACTION, Meaning.CLUSTER, refusal=refuse),),
        split=split,
        execute=_execute,
        merge=merge,
        cluster_action=True,
    )


def _operations(request: Any, to_operation: _ToOperation) -> Iterator[StateOperation]:
    if _is_complete(request):
        for topic in request.topics:
            for each in topic.partitions:
                yield to_operation(ShareKey(request.group_id, topic.topic_id, each.partition), each)


def _is_complete(request: Any) -> bool:
    return bool(request.group_id and request.topics) and all(
        topic.partitions for topic in request.topics
    )


def _error(reply: StateReply) -> dict[str, Any]:
    return {"error_code": reply.error, "error_message": reply.text}


def _read_result(partition: int, reply: StateReply) -> read_share_group_state.PartitionResult:
    state = reply.state or ShareState(start_offset=0)
    return read_share_group_state.PartitionResult(
        partition=partition,
        **_error(reply),
        state_epoch=state.state_epoch,
        start_offset=state.start_offset,
        state_batches=[
            read_share_group_state.StateBatch(
                first_offset=each.first,
                last_offset=each.last,
                delivery_state=each.state,
                delivery_count=each.deliveries,
            )
            for each in state.batches
        ],
    )


def _summary(partition: int, reply: StateReply) -> read_share_group_state_summary.PartitionResult:
    if reply.error is not ErrorCode.NONE:
        return read_share_group_state_summary.PartitionResult(partition=partition, **_error(reply))
    state = reply.state or ShareState(state_epoch=-1, start_offset=UNKNOWN_OFFSET)
    return read_share_group_state_summary.PartitionResult(
        partition=partition,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.complete_count,
    )


def _written(key: ShareKey, each: write_share_group_state.PartitionData) -> WriteState:
    batches = tuple(
        StateBatch(
            batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count
        )
        for batch in each.state_batches
    )
    return WriteState(
        key,
        each.state_epoch,
        each.leader_epoch,
        each.start_offset,
        each.delivery_complete_count,
        batches,
    )


APIS: Final = (
    _state_api(
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        initialize_share_group_state,
        "InitializeState",
        to_operation=lambda key, each: InitializeState(key, each.state_epoch, each.start_offset),
        to_result=lambda partition, reply: initialize_share_group_state.PartitionResult(
            partition=partition, **_error(reply)
        ),
    ),
    _state_api(
        ApiKey.READ_SHARE_GROUP_STATE,
        read_share_group_state,
        "ReadState",
        to_operation=lambda key, each: ReadState(key, each.leader_epoch),
        to_result=_read_result,
    ),
    _state_api(
        ApiKey.WRITE_SHARE_GROUP_STATE,
        write_share_group_state,
        "WriteState",
        highest=1,
        to_operation=_written,
        to_result=lambda partition, reply: write_share_group_state.PartitionResult(
            partition=partition, **_error(reply)
        ),
    ),
    _state_api(
        ApiKey.DELETE_SHARE_GROUP_STATE,
        delete_share_group_state,
        "DeleteState",
        to_operation=lambda key, _each: DeleteState(key),
        to_result=lambda partition, reply: delete_share_group_state.PartitionResult(
            partition=partition, **_error(reply)
        ),
    ),
    _state_api(
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        read_share_group_state_summary,
        "ReadStateSummary",
        highest=1,
        to_operation=lambda key, _each: SummarizeState(key),
        to_result=_summary,
    ),
)

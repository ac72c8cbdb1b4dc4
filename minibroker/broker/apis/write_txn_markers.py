"""WriteTxnMarkers (27): append the markers that end transactions.

Versions 1-2; version 2 adds the transaction version, which decides how the epoch of a marker is
checked (KIP-1228). The broker's own transaction coordinators send their markers in the same parts,
and admin clients abort a hanging transaction with it. Markers on ``__consumer_offsets`` also
complete the offsets that groups have pending. Kafka's ``KafkaApis.handleWriteTxnMarkersRequest``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.producers import TransactionMarker
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import OFFSETS_TOPIC
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker_protocol.registry import ApiKey

MarkersPart = tuple[TransactionMarker, ...]
MarkersReply = dict[int, dict[tuple[str, int], ErrorCode]]
"""Errors by producer id and partition."""


def split(ctx: Context, request: WriteTxnMarkersRequest) -> Mapping[Owner, MarkersPart]:
    """The existing partitions of each marker by owner."""
    parts: dict[Owner, list[TransactionMarker]] = {}
    for marker in request.markers:
        by_owner: dict[Owner, list[tuple[str, int]]] = {}
        for topic, index in _partitions(marker):
            if ctx.image.partition(topic, index) is not None:
                by_owner.setdefault(ctx.partition_owner(topic, index), []).append((topic, index))
        for owner, partitions in by_owner.items():
            parts.setdefault(owner, []).append(_part(marker, partitions))
    return {owner: tuple(markers) for owner, markers in parts.items()}


def _partitions(marker: WritableTxnMarker) -> Iterator[tuple[str, int]]:
    for topic in marker.topics:
        for index in topic.partition_indexes:
            yield topic.name, index


def _part(marker: WritableTxnMarker, partitions: list[tuple[str, int]]) -> TransactionMarker:
    return TransactionMarker(
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        marker.transaction_version,
        tuple(partitions),
    )


def execute(scope: WorkerScope, part: MarkersPart) -> MarkersReply:
    """Append each marker to its partitions."""
    errors: MarkersReply = {}
    for marker in part:
        results = errors.setdefault(marker.producer_id, {})
        for topic, index in marker.partitions:
            results[topic, index] = _append(scope, marker, topic, index)
    return errors


def _append(scope: WorkerScope, marker: TransactionMarker, topic: str, index: int) -> ErrorCode:
    if marker.producer_id < 0:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if marker.producer_epoch < 0:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    try:
        partition = scope.partition(topic, index)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        append = partial(_append_marker, scope, partition, marker)
        if topic == OFFSETS_TOPIC:
            scope.groups.complete_transaction(
                index, marker.producer_id, committed=marker.committed, append=append
            )
        else:
            append()
    except LogError as error:
        return error.code
    scope.appended(topic, index, 0, 0)
    return ErrorCode.NONE


def _append_marker(scope: WorkerScope, partition: Partition, marker: TransactionMarker) -> None:
    partition.append_marker(
        marker.producer_id,
        marker.producer_epoch,
        marker.marker,
        transaction_version=marker.transaction_version,
        now_ms=scope.wall_ms(),
    )


def merge(
    _ctx: Context, request: WriteTxnMarkersRequest, replies: Mapping[Owner, MarkersReply]
) -> WriteTxnMarkersResponse:
    """The result of each partition by producer id."""
    errors: MarkersReply = {}
    for reply in replies.values():
        for producer_id, results in reply.items():
            errors.setdefault(producer_id, {}).update(results)
    return _response(request, errors, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def refusal(request: WriteTxnMarkersRequest, error: ErrorCode) -> WriteTxnMarkersResponse:
    """The response to a request that is denied as a whole."""
    return _response(request, {}, error)


def _response(
    request: WriteTxnMarkersRequest, errors: MarkersReply, missing: ErrorCode
) -> WriteTxnMarkersResponse:
    by_producer: dict[int, dict[str, dict[int, ErrorCode]]] = {}
    for marker in request.markers:
        if not any(_partitions(marker)):
            continue  # Kafka has no result without a partition.
        topics = by_producer.setdefault(marker.producer_id, {})
        results = errors.get(marker.producer_id, {})
        for topic, index in _partitions(marker):
            topics.setdefault(topic, {})[index] = results.get((topic, index), missing)
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=[_topic_result(name, results) for name, results in topics.items()],
            )
            for producer_id, topics in by_producer.items()
        ]
    )


def _topic_result(name: str, results: Mapping[int, ErrorCode]) -> WritableTxnMarkerTopicResult:
    return WritableTxnMarkerTopicResult(
        name=name,
        partitions=[
            WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
            for index, error in results.items()
        ],
    )


API = Api(
    key=ApiKey.WRITE_TXN_MARKERS,
    versions=(1, 2),
    requires=(
        Requires(
            Operation.CLUSTER_ACTION, Meaning.CLUSTER, or_cluster=Operation.ALTER, refusal=refusal
        ),
    ),
    split=split,
    execute=execute,
    merge=merge,
    cluster_action=True,
)

"""ElectLeaders (43): let the preferred, or any, replica lead a partition (KIP-460).

Versions 0-2; version 0 elects preferred leaders only. Each partition has one replica, which leads
it, so a partition of the request gets ELECTION_NOT_NEEDED; if the request names none, the response
omits such partitions. An unknown election type gets INVALID_REQUEST. In Kafka:
``ReplicationControlManager.electLeaders``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from minibroker.broker.apis.base import Context, Requires, without_owner
from minibroker.broker.metadata.image import ChangeRejected, Image
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from minibroker_protocol.registry import ApiKey

PREFERRED, UNCLEAN = 0, 1
_TYPES: Final = (PREFERRED, UNCLEAN)
NO_LEADER: Final = -1

Outcome = Callable[[str, int], ChangeRejected]
"""The error of a partition."""


def answer(ctx: Context, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """One result per partition of the request."""
    kind = request.election_type
    if kind not in _TYPES:
        problem = ChangeRejected(ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}")
        return refusal(request, *problem)
    if request.topic_partitions is None:
        return ElectLeadersResponse(replica_election_results=list(_needed(ctx.image, kind)))
    return _response(request, lambda topic, index: _outcome(ctx.image, kind, topic, index))


def refusal(
    request: ElectLeadersRequest, error: ErrorCode, text: str | None = None
) -> ElectLeadersResponse:
    """The same error at the top level and for each partition."""
    response = _response(request, lambda _topic, _index: ChangeRejected(error, text or ""))
    response.error_code = error
    return response


def _response(request: ElectLeadersRequest, outcome: Outcome) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        replica_election_results=[
            _topic_result(topic, outcome) for topic in request.topic_partitions or ()
        ]
    )


def _topic_result(topic: TopicPartitions, outcome: Outcome) -> ReplicaElectionResult:
    results = []
    for index in topic.partitions:
        error, text = outcome(topic.topic, index)
        results.append(PartitionResult(partition_id=index, error_code=error, error_message=text))
    return ReplicaElectionResult(topic=topic.topic, partition_result=results)


def _outcome(image: Image, kind: int, topic: str, index: int) -> ChangeRejected:
    if topic not in image.topics:
        return ChangeRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}")
    partition = image.partition(topic, index)
    if partition is None:
        text = f"No such partition as {topic}-{index}"
        return ChangeRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    leads = partition.leader != NO_LEADER
    if partition.leader == partition.replicas[0] or (kind == UNCLEAN and leads):
        text = "Leader election not needed for topic partition."
        return ChangeRejected(ErrorCode.ELECTION_NOT_NEEDED, text)
    if kind == PREFERRED:
        return ChangeRejected(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
        )
    return ChangeRejected(
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        "Eligible topic partition leaders are not available.",
    )


def _needed(image: Image, kind: int) -> Iterator[ReplicaElectionResult]:
    """Every topic, with those of its partitions that would need an election."""
    for topic in image.topics.values():
        found = TopicPartitions(topic=topic.name)
        for partition in topic.partitions:
            error, _ = _outcome(image, kind, topic.name, partition.index)
            if error != ErrorCode.ELECTION_NOT_NEEDED:
                found.partitions.append(partition.index)
        yield _topic_result(found, lambda name, index: _outcome(image, kind, name, index))


API = without_owner(
    answer,
    key=ApiKey.ELECT_LEADERS,
    versions=(0, 2),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, refusal=refusal),),
    left_out=("elections: each partition has one replica, and only that can lead",),
)

"""DeleteTopics (20): delete topics with all their records, independently of each other.

Versions 1-6, by name, and from 6 on by id. ``delete.topic.enable=false`` rejects the request. The
response is sent when every process has released the topic, so a topic of the same name can be
created immediately. In Kafka: ``ControllerApis.deleteTopics``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from minibroker.broker.apis.base import (
    SPECIAL,
    Context,
    ControllerRequest,
    ControllerScope,
    MutationResponse,
    ServedApi,
    at_controller,
)
from minibroker.broker.metadata.image import ChangeRejected, Image
from minibroker.broker.settings.definitions import DELETE_TOPIC_ENABLE
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID

DISABLED_SINCE = 3
"""First version whose clients understand TOPIC_DELETION_DISABLED."""

STRICT_FROM = 5
"""First version whose clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


class Target(NamedTuple):
    """A topic by name, or by id if the name is None."""

    name: str | None
    topic_id: bytes = ZERO_UUID


class Result(NamedTuple):
    """Result of deleting a target."""

    target: Target
    rejection: ChangeRejected | None = None


async def execute(
    scope: ControllerScope, request: ControllerRequest[DeleteTopicsRequest]
) -> MutationResponse:
    """Find and delete the topics, and wait until every process has released them."""
    results, found = _resolve(scope.image, _targets(request.message))
    mutations = scope.mutations(request.mutator(strict_from=STRICT_FROM))
    outcome = await scope.cluster.delete_topics(list(found), allow=mutations.take)
    await scope.publish(outcome.updates)
    for gone in outcome.topics:
        target = found[gone.name]
        if gone.topic is not None:
            target = Target(gone.name, gone.topic.topic_id)
        results.append(Result(target, gone.rejection))
    return MutationResponse(_response(results), mutations.mutated())


def reject(ctx: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse | None:
    """An error for each topic if ``delete.topic.enable`` is false."""
    if ctx.settings[DELETE_TOPIC_ENABLE]:
        return None
    known = ctx.version >= DISABLED_SINCE
    code = ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST
    disabled = ChangeRejected(code, "Topic deletion is disabled (delete.topic.enable=false).")
    return _response(Result(target, disabled) for target in _targets(request))


def _targets(request: DeleteTopicsRequest) -> tuple[Target, ...]:
    return (
        *(Target(topic.name, topic.topic_id) for topic in request.topics),
        *map(Target, request.topic_names),
    )


def _response(results: Iterable[Result]) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=result.target.name,
                topic_id=result.target.topic_id,
                error_code=result.rejection.code if result.rejection else ErrorCode.NONE,
                error_message=result.rejection.text if result.rejection else None,
            )
            for result in results
        ]
    )


def _resolve(image: Image, targets: tuple[Target, ...]) -> tuple[list[Result], dict[str, Target]]:
    """Results of invalid targets, and the valid targets by topic name."""
    results: list[Result] = []
    found: dict[str, Target] = {}
    for target, times in Counter(targets).items():
        rejection = _refuse(image, target, times)
        known = image.topic_by_id(target.topic_id)
        name = target.name or (known.name if known else "")
        if rejection is None and name in found:
            text = "The provided topic name maps to an ID that was already supplied."
            rejection = ChangeRejected(ErrorCode.INVALID_REQUEST, text)
        if rejection is None:
            found[name] = Target(name, target.topic_id)
        else:
            results.append(Result(target, rejection))
    return results, found


def _refuse(image: Image, target: Target, times: int) -> ChangeRejected | None:
    invalid = ErrorCode.INVALID_REQUEST
    by_id = target.topic_id != ZERO_UUID
    if target.name is None and not by_id:
        return ChangeRejected(invalid, "Neither topic name nor id were specified.")
    if target.name is not None and by_id:
        return ChangeRejected(invalid, "You may not specify both topic name and topic id.")
    if times > 1:
        return ChangeRejected(invalid, f"Duplicate topic {'id' if by_id else 'name'}.")
    if by_id and image.topic_by_id(target.topic_id) is None:
        return ChangeRejected(ErrorCode.UNKNOWN_TOPIC_ID, "There is no topic with this id.")
    return None


API: ServedApi = at_controller(
    execute,
    key=ApiKey.DELETE_TOPICS,
    versions=(1, 6),
    requires=SPECIAL,
    reject=reject,
    left_out=("deleting __consumer_offsets: groups find their offsets in it, so it is refused",),
)

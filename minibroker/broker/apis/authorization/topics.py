"""Authorization checks of requests that describe, create, grow or delete topics.

Defines the operation that each request requires on a topic or on the cluster, and the errors of
denied topics. Invariant: if the caller may not describe a topic, the response does not reveal
whether the topic exists. Kafka has these checks in ``handleTopicMetadataRequest``,
``handleCreateTopicsRequest`` and ``handleDeleteTopicsRequest``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from minibroker.broker.apis import describe_topic_partitions as pages
from minibroker.broker.apis.authorization.authorizer_check import Finish, allowed, authorized
from minibroker.broker.apis.base import Context, Denied
from minibroker.broker.apis.operations import NOT_ASKED
from minibroker.broker.security.acl import Operation, Resource
from minibroker.broker.settings import AUTO_CREATE_TOPICS_ENABLE, DELETE_TOPIC_ENABLE
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_partitions import CreatePartitionsTopicResult
from minibroker_protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from minibroker_protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from minibroker_protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from minibroker_protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from minibroker_protocol.types import ZERO_UUID

_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_TEXT: Final = "Authorization failed."
CONFIGS_SINCE: Final = 5
"""First version of CreateTopics whose response has the configs of the new topic."""


def metadata(ctx: Context, request: Any) -> Finish:
    """Require DESCRIBE on each topic, and CREATE on the cluster or on each topic to be created."""
    wants_all = request.topics is None or (ctx.version == 0 and not request.topics)
    permitted, hidden = allowed(
        ctx,
        Operation.DESCRIBE,
        Resource.TOPIC,
        request.topics or (),
        lambda asked: _asked_name(ctx, asked),
    )
    permitted, not_made = _split_creatable(ctx, request, permitted)
    apart = {(asked.topic_id, asked.name): asked for asked in (*not_made, *hidden)}
    rejected = [_refusal(asked) for asked in apart.values()]
    if not wants_all:
        request.topics = permitted
    none_permitted = not wants_all and not permitted

    def finish(response: MetadataResponse) -> MetadataResponse:
        topics = [] if none_permitted else response.topics
        if wants_all:
            topics, _ = allowed(
                ctx,
                Operation.DESCRIBE,
                Resource.TOPIC,
                topics,
                lambda topic: topic.name,
                quietly=True,
            )
        for topic in topics:
            if topic.topic_authorized_operations != NOT_ASKED and topic.name is not None:
                topic.topic_authorized_operations = authorized(ctx, Resource.TOPIC, topic.name)
        response.topics = topics + rejected
        if response.cluster_authorized_operations != NOT_ASKED:
            response.cluster_authorized_operations = cluster_operations(ctx)
        return response

    return finish


def describe_topic_partitions(ctx: Context, request: Any) -> Finish | Denied | None:
    """Require DESCRIBE on each topic; without topics in the request, describe the allowed ones."""
    if pages.has_invalid_cursor(request):
        return None  # The API rejects it.
    wants_all = not request.topics
    permitted, hidden = allowed(
        ctx,
        Operation.DESCRIBE,
        Resource.TOPIC,
        pages.names_from_cursor(ctx, request),
        lambda name: name,
        quietly=wants_all,
    )
    rejected = [
        DescribeTopicPartitionsResponseTopic(error_code=_DENIED, name=name) for name in hidden
    ]
    if not permitted:
        topics = [] if wants_all else rejected
        return Denied(DescribeTopicPartitionsResponse(topics=topics))
    if rejected or not wants_all:
        request.topics = [TopicRequest(name=name) for name in permitted]
        if request.cursor is not None and request.cursor.topic_name not in permitted:
            request.cursor = None

    def finish(response: DescribeTopicPartitionsResponse) -> DescribeTopicPartitionsResponse:
        for topic in response.topics:
            assert topic.name is not None
            topic.topic_authorized_operations = authorized(ctx, Resource.TOPIC, topic.name)
        if not wants_all:
            response.topics += rejected
        return response

    return finish


def cluster_operations(ctx: Context) -> int:
    """Authorized operations on the cluster; 0 if the caller may not describe the cluster."""
    if ctx.allows(Operation.DESCRIBE, Resource.CLUSTER):
        return authorized(ctx, Resource.CLUSTER)
    return 0


def _asked_name(ctx: Context, asked: Any) -> str | None:
    if asked.topic_id != ZERO_UUID:
        return ctx.image.topic_names.get(asked.topic_id)
    name: str | None = asked.name
    return name


def _split_creatable(ctx: Context, request: Any, asked: list[Any]) -> tuple[list[Any], list[Any]]:
    """Split topics into those that exist or may be created, and the others."""
    if not (request.allow_auto_topic_creation and ctx.settings[AUTO_CREATE_TOPICS_ENABLE]):
        return asked, []
    if ctx.allows(Operation.CREATE, Resource.CLUSTER, quietly=True):
        return asked, []
    return allowed(
        ctx,
        Operation.CREATE,
        Resource.TOPIC,
        asked,
        lambda one: None if one.topic_id != ZERO_UUID or one.name in ctx.image.topics else one.name,
    )


def _refusal(asked: Any) -> MetadataResponseTopic:
    if asked.topic_id != ZERO_UUID:
        return MetadataResponseTopic(error_code=_DENIED, name=None, topic_id=asked.topic_id)
    return MetadataResponseTopic(error_code=_DENIED, name=asked.name or "")


def _name_unless_repeated(topics: Iterable[Any]) -> Callable[[Any], str | None]:
    """Return a function for the name to authorize; None for a name that the request repeats.

    Repeated names pass the check because the API rejects them.
    """
    times = Counter(topic.name for topic in topics)
    return lambda topic: topic.name if times[topic.name] == 1 else None


def create_topics(ctx: Context, request: Any) -> Finish:
    """Require CREATE on the cluster or on each topic, and DESCRIBE_CONFIGS to return configs."""
    rejected = list[Any]()
    if not ctx.allows(Operation.CREATE, Resource.CLUSTER, quietly=True):
        request.topics, rejected = allowed(
            ctx,
            Operation.CREATE,
            Resource.TOPIC,
            request.topics,
            _name_unless_repeated(request.topics),
        )

    def finish(response: CreateTopicsResponse) -> CreateTopicsResponse:
        if ctx.version >= CONFIGS_SINCE:
            for made in response.topics:
                if made.error_code == ErrorCode.NONE and not ctx.allows(
                    Operation.DESCRIBE_CONFIGS, Resource.TOPIC, made.name, quietly=True
                ):
                    made.topic_config_error_code = _DENIED
                    made.num_partitions = made.replication_factor = -1
                    made.configs = []
        response.topics += [
            CreatableTopicResult(name=topic.name, error_code=_DENIED, error_message=_TEXT)
            for topic in rejected
        ]
        return response

    return finish


def delete_topics(ctx: Context, request: Any) -> Finish | None:
    """Require DELETE on the cluster or on each topic.

    Callers that may describe a topic learn that it does not exist, and the name behind a topic id.
    """
    if not ctx.settings[DELETE_TOPIC_ENABLE]:
        return None
    if ctx.allows(Operation.DELETE, Resource.CLUSTER, quietly=True):
        return None
    times = Counter(request.topic_names)
    request.topic_names, rejected_names = allowed(
        ctx,
        Operation.DELETE,
        Resource.TOPIC,
        request.topic_names,
        lambda name: name if times[name] == 1 else None,
    )
    request.topics, rejected = allowed(
        ctx, Operation.DELETE, Resource.TOPIC, request.topics, _deleted_name(ctx, request.topics)
    )
    if not (rejected or rejected_names):
        return None
    answers = [
        _not_deleted(ctx, name, ZERO_UUID)
        for name in (*rejected_names, *(topic.name for topic in rejected if topic.name is not None))
    ]
    answers += [_not_deleted(ctx, None, topic.topic_id) for topic in rejected if topic.name is None]

    def finish(response: DeleteTopicsResponse) -> DeleteTopicsResponse:
        response.responses += answers
        return response

    return finish


def _deleted_name(ctx: Context, topics: Iterable[Any]) -> Callable[[Any], str | None]:
    """Return a function for the name to authorize.

    It is None for a topic that the request repeats or gives by name and id at once: the API rejects
    these.
    """
    times = Counter((topic.name, topic.topic_id) for topic in topics)

    def name(topic: Any) -> str | None:
        is_both = topic.name is not None and topic.topic_id != ZERO_UUID
        if is_both or times[topic.name, topic.topic_id] > 1:
            return None
        return _asked_name(ctx, topic)

    return name


def _not_deleted(ctx: Context, name: str | None, topic_id: bytes) -> DeletableTopicResult:
    """Result of a denied topic, which is given by its id if the name is None."""
    error = _DENIED
    shown = ctx.image.topic_names.get(topic_id) if name is None else name
    may_describe = ctx.allows(Operation.DESCRIBE, Resource.TOPIC, shown or "")
    if name is None and not may_describe:
        shown = None
    elif may_describe and shown not in ctx.image.topics:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return DeletableTopicResult(name=shown, topic_id=topic_id, error_code=error, error_message=None)


def create_partitions(ctx: Context, request: Any) -> Finish | None:
    """Require ALTER on each topic."""
    request.topics, rejected = allowed(
        ctx, Operation.ALTER, Resource.TOPIC, request.topics, _name_unless_repeated(request.topics)
    )
    if not rejected:
        return None

    def finish(response: Any) -> Any:
        response.results += [
            CreatePartitionsTopicResult(
                name=topic.name,
                error_code=_DENIED,
                error_message="The topic authorization is failed.",
            )
            for topic in rejected
        ]
        return response

    return finish

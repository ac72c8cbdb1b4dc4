"""Checks of the APIs whose requirements depend on more than the names in a request.

Each function says in its first line what its API requires. Invariant: a transaction is changed as a
whole or not at all, so one topic without authorization rejects all partitions of a request; and if
the caller may not describe a resource, the response does not reveal whether it exists. In Kafka
these are the checks in ``KafkaApis``, ``ControllerApis`` and ``DelegationTokenManager``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from minibroker.broker.apis.authorization.checks import (
    ERRORS,
    AuthorizationCheck,
    Finish,
    allowed,
    authorized,
    check_requirements,
)
from minibroker.broker.apis.authorization.streams_checks import STREAMS_CHECKS
from minibroker.broker.apis.base import CloseConnection, Context, Denied, Requires
from minibroker.broker.apis.consumer_groups import serves_consumer_groups
from minibroker.broker.apis.credentials import (
    creation_refusal,
    requested_owner,
    requests_problem,
)
from minibroker.broker.apis.fetch import is_follower_fetch
from minibroker.broker.apis.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH
from minibroker.broker.apis.group_offsets import SEVERAL_GROUPS_SINCE
from minibroker.broker.apis.share_groups import is_member_id, serves_share_groups
from minibroker.broker.apis.topics import has_invalid_cursor, names_from_cursor
from minibroker.broker.apis.transactions import (
    SEVERAL_TRANSACTIONS_SINCE,
    partitions_of,
    rejected_partitions,
    transaction_result,
    transactions_of,
    transactions_response,
)
from minibroker.broker.security.acl import OPERATIONS_NOT_ASKED, Operation, Resource
from minibroker.broker.security.principal import Principal
from minibroker.broker.settings import AUTO_CREATE_TOPICS_ENABLE, DELETE_TOPIC_ENABLE
from minibroker_protocol.entities import error_element, error_response
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages import alter_share_group_offsets as altered
from minibroker_protocol.messages import consumer_group_describe as described
from minibroker_protocol.messages import describe_share_group_offsets as described_offsets
from minibroker_protocol.messages import share_group_describe as described_shares
from minibroker_protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from minibroker_protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsResponse
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from minibroker_protocol.messages.create_partitions import CreatePartitionsTopicResult
from minibroker_protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from minibroker_protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from minibroker_protocol.messages.delete_topics import DeletableTopicResult
from minibroker_protocol.messages.describe_groups import DescribedGroup
from minibroker_protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from minibroker_protocol.messages.describe_transactions import TransactionState
from minibroker_protocol.messages.fetch import FetchableTopicResponse, FetchResponse
from minibroker_protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from minibroker_protocol.messages.init_producer_id import InitProducerIdResponse
from minibroker_protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from minibroker_protocol.messages.share_group_heartbeat import ShareGroupHeartbeatResponse
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID

_TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED


def _adding(array: str, elements: Sequence[Any]) -> Finish | None:
    """Return a function that adds the elements of what was denied to an array of the response."""
    if not elements:
        return None

    def finish(response: Any) -> Any:
        getattr(response, array).extend(elements)
        return response

    return finish


def _omitting(ctx: Context, array: str, resource: Resource, name: Callable[[Any], str]) -> Finish:
    """Return a function that omits elements of the response without DESCRIBE."""

    def finish(response: Any) -> Any:
        elements = getattr(response, array)
        visible, _ = allowed(ctx, Operation.DESCRIBE, resource, elements, name, quietly=True)
        setattr(response, array, visible)
        return response

    return finish


# Records ------------------------------------------------------------------------------------------

_PRODUCE: Final = (
    Requires(Operation.WRITE, Meaning.TRANSACTIONAL_ID),
    Requires(Operation.WRITE, Meaning.TOPIC),
)


def produce(ctx: Context, request: Any) -> Finish | Denied | None:
    """Require WRITE on the transactional id and on each topic; close if there is no response."""
    outcome = check_requirements(ctx, request, _PRODUCE)
    if request.acks != 0 or outcome is None:
        return outcome

    def close(_response: Any) -> Any:
        raise CloseConnection("records with acks=0 were denied; the client gets no response")

    return close(None) if isinstance(outcome, Denied) else close


TOPIC_IDS_SINCE: Final = 13
"""First version of Fetch that gives topics by id."""


def fetch(ctx: Context, request: Any) -> Finish | None:
    """Require READ on each topic, or CLUSTER_ACTION for a follower fetch.

    The partitions of a session are checked by ``apis.fetch``.
    """
    if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        return None
    if not is_follower_fetch(request):
        permitted, rejected = allowed(
            ctx,
            Operation.READ,
            Resource.TOPIC,
            request.topics,
            lambda topic: _name(ctx, topic, topic.topic, ids_since=TOPIC_IDS_SINCE),
        )
    elif ctx.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER):
        return None
    else:
        permitted, rejected = [], list(request.topics)
    if not rejected:
        return None
    request.topics, ctx.refused_topics = permitted, rejected
    request.max_wait_ms = 0  # A response with an error is sent immediately.

    def finish(response: FetchResponse) -> FetchResponse:
        if response.error_code == ErrorCode.NONE:
            response.responses += [_not_read(ctx, topic) for topic in rejected]
        return response

    return finish


def _not_read(ctx: Context, topic: Any) -> FetchableTopicResponse:
    made: FetchableTopicResponse = error_element(
        FetchableTopicResponse, ctx.version, topic, _TOPIC_DENIED
    )
    for partition in made.partitions:
        partition.records = b""
    return made


def _name(ctx: Context, topic: Any, name: str | None, *, ids_since: int) -> str | None:
    """The name of a topic of a request; None for an unknown id, which the API rejects."""
    return name if ctx.version < ids_since else ctx.image.topic_names.get(topic.topic_id)


# Topics -------------------------------------------------------------------------------------------


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
            if topic.topic_authorized_operations != OPERATIONS_NOT_ASKED and topic.name is not None:
                topic.topic_authorized_operations = authorized(ctx, Resource.TOPIC, topic.name)
        response.topics = topics + rejected
        if response.cluster_authorized_operations != OPERATIONS_NOT_ASKED:
            response.cluster_authorized_operations = _cluster_operations(ctx)
        return response

    return finish


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
        return MetadataResponseTopic(error_code=_TOPIC_DENIED, name=None, topic_id=asked.topic_id)
    return MetadataResponseTopic(error_code=_TOPIC_DENIED, name=asked.name or "")


def describe_cluster(ctx: Context, _request: Any) -> Finish:
    """Allow every caller; fill in the authorized operations if the request asks for them."""

    def finish(response: Any) -> Any:
        if response.cluster_authorized_operations != OPERATIONS_NOT_ASKED:
            response.cluster_authorized_operations = _cluster_operations(ctx)
        return response

    return finish


def _cluster_operations(ctx: Context) -> int:
    """Authorized operations on the cluster; 0 if the caller may not describe the cluster."""
    if ctx.allows(Operation.DESCRIBE, Resource.CLUSTER):
        return authorized(ctx, Resource.CLUSTER)
    return 0


def describe_topic_partitions(ctx: Context, request: Any) -> Finish | Denied | None:
    """Require DESCRIBE on each topic; without topics in the request, describe the allowed ones."""
    if has_invalid_cursor(request):
        return None  # The API rejects it.
    wants_all = not request.topics
    permitted, hidden = allowed(
        ctx,
        Operation.DESCRIBE,
        Resource.TOPIC,
        names_from_cursor(ctx, request),
        lambda name: name,
        quietly=wants_all,
    )
    rejected = [
        DescribeTopicPartitionsResponseTopic(error_code=_TOPIC_DENIED, name=name) for name in hidden
    ]
    if not permitted:
        topics = [] if wants_all else rejected
        return Denied(DescribeTopicPartitionsResponse(topics=topics))
    if rejected or not wants_all:
        request.topics = [TopicRequest(name=name) for name in permitted]
        if request.cursor is not None and request.cursor.topic_name not in permitted:
            request.cursor = None

    def finish(
        response: DescribeTopicPartitionsResponse,
    ) -> DescribeTopicPartitionsResponse:
        for topic in response.topics:
            assert topic.name is not None
            topic.topic_authorized_operations = authorized(ctx, Resource.TOPIC, topic.name)
        if not wants_all:
            response.topics += rejected
        return response

    return finish


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
                    made.topic_config_error_code = _TOPIC_DENIED
                    made.num_partitions = made.replication_factor = -1
                    made.configs = []
        response.topics += [
            CreatableTopicResult(
                name=topic.name, error_code=_TOPIC_DENIED, error_message="Authorization failed."
            )
            for topic in rejected
        ]
        return response

    return finish


CONFIGS_SINCE: Final = 5
"""First version of CreateTopics whose response has the configs of the new topic."""


def _name_unless_repeated(topics: Iterable[Any]) -> Callable[[Any], str | None]:
    """Return a function for the name to authorize; None for a name that the request repeats.

    Repeated names pass the check because the API rejects them.
    """
    times = Counter(topic.name for topic in topics)
    return lambda topic: topic.name if times[topic.name] == 1 else None


def create_partitions(ctx: Context, request: Any) -> Finish | None:
    """Require ALTER on each topic."""
    request.topics, rejected = allowed(
        ctx, Operation.ALTER, Resource.TOPIC, request.topics, _name_unless_repeated(request.topics)
    )
    denied = [
        CreatePartitionsTopicResult(
            name=topic.name,
            error_code=_TOPIC_DENIED,
            error_message="The topic authorization is failed.",
        )
        for topic in rejected
    ]
    return _adding("results", denied)


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
    answers = [
        _not_deleted(ctx, name, ZERO_UUID)
        for name in (*rejected_names, *(topic.name for topic in rejected if topic.name is not None))
    ]
    answers += [_not_deleted(ctx, None, topic.topic_id) for topic in rejected if topic.name is None]
    return _adding("responses", answers)


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
    error = _TOPIC_DENIED
    shown = ctx.image.topic_names.get(topic_id) if name is None else name
    may_describe = ctx.allows(Operation.DESCRIBE, Resource.TOPIC, shown or "")
    if name is None and not may_describe:
        shown = None
    elif may_describe and shown not in ctx.image.topics:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return DeletableTopicResult(name=shown, topic_id=topic_id, error_code=error, error_message=None)


# Groups -------------------------------------------------------------------------------------------

KEY_RESOURCES: Final = {0: Resource.GROUP, 1: Resource.TRANSACTIONAL_ID, 2: Resource.CLUSTER}
"""Resource to authorize for FindCoordinator by key type. The third, a share group, requires
CLUSTER_ACTION. The API rejects any other key type.
"""


def find_coordinator(ctx: Context, request: Any) -> Finish | Denied | None:
    """Require DESCRIBE on each group or transactional id."""
    resource = KEY_RESOURCES.get(request.key_type)
    if resource is None:
        return None
    error = ERRORS[resource]

    def may(key: str) -> bool:
        if resource is Resource.CLUSTER:
            return ctx.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER)
        return ctx.allows(Operation.DESCRIBE, resource, key)

    if ctx.version < 4:
        if may(request.key):
            return None
        return Denied(error_response(FindCoordinatorResponse, ctx.version, request, error))
    rejected = [key for key in request.coordinator_keys if not may(key)]
    request.coordinator_keys = [key for key in request.coordinator_keys if key not in rejected]
    denied = [error_element(Coordinator, ctx.version, key, error) for key in rejected]
    return _adding("coordinators", denied)


def describe_groups(ctx: Context, request: Any) -> Finish:
    """Require DESCRIBE on each group; fill in the authorized operations on request."""
    request.groups, rejected = allowed(ctx, Operation.DESCRIBE, Resource.GROUP, request.groups, str)

    def finish(response: Any) -> Any:
        for group in response.groups:
            if group.authorized_operations != OPERATIONS_NOT_ASKED:
                group.authorized_operations = authorized(ctx, Resource.GROUP, group.group_id)
        response.groups += [
            DescribedGroup(
                group_id=group_id,
                error_code=_GROUP_DENIED,
                authorized_operations=OPERATIONS_NOT_ASKED,
            )
            for group_id in rejected
        ]
        return response

    return finish


def _heartbeat(
    is_served: Callable[[Context], bool],
    response: type,
    may_be_member_id: Callable[[str], bool] = lambda _member_id: True,
) -> AuthorizationCheck:
    """Require READ on the group and DESCRIBE on each topic, if such groups are served.

    A request with an impossible member id passes, because the API rejects it.
    """

    def check(ctx: Context, request: Any) -> Denied | None:
        if not is_served(ctx):
            return None
        if not ctx.allows(Operation.READ, Resource.GROUP, request.group_id):
            return Denied(response(error_code=_GROUP_DENIED))
        names = request.subscribed_topic_names or ()
        if not may_be_member_id(request.member_id):
            return None
        if allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, names, str)[1]:
            return Denied(response(error_code=_TOPIC_DENIED))
        return None

    return check


def _describe(
    is_served: Callable[[Context], bool],
    group_type: type,
    topics_of: Callable[[Any], Iterable[str]],
) -> AuthorizationCheck:
    """Require DESCRIBE on each group, and on each topic of its members."""

    def check(ctx: Context, request: Any) -> Finish | None:
        if not is_served(ctx):
            return None
        permitted, rejected = allowed(
            ctx, Operation.DESCRIBE, Resource.GROUP, request.group_ids, str
        )
        request.group_ids = permitted

        def finish(response: Any) -> Any:
            for group in response.groups:
                if group.authorized_operations != OPERATIONS_NOT_ASKED:
                    group.authorized_operations = authorized(ctx, Resource.GROUP, group.group_id)
                names = sorted({name for member in group.members for name in topics_of(member)})
                if allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, names, str)[1]:
                    group.error_code = _TOPIC_DENIED
                    group.error_message = (
                        "The group has described topic(s) that the client is not authorized to "
                        "describe."
                    )
                    group.members = []
            response.groups += [
                group_type(group_id=group_id, error_code=_GROUP_DENIED) for group_id in rejected
            ]
            return response

        return finish

    return check


def _topics_of(member: described.Member) -> Iterable[str]:
    yield from member.subscribed_topic_names
    for assignment in (member.assignment, member.target_assignment):
        yield from (each.topic_name for each in assignment.topic_partitions)


def _shared_topics_of(member: described_shares.Member) -> Iterable[str]:
    assigned = [each.topic_name for each in member.assignment.topic_partitions]
    return [*member.subscribed_topic_names, *assigned]


def share_records(_ctx: Context, _request: Any) -> None:
    """Nothing: the API itself checks the group, and each partition when it is fetched."""


def describe_share_group_offsets(ctx: Context, request: Any) -> Finish | None:
    """Require DESCRIBE on each group and topic."""
    if not serves_share_groups(ctx):
        return None
    permitted, rejected = allowed(
        ctx, Operation.DESCRIBE, Resource.GROUP, request.groups, lambda group: group.group_id
    )
    request.groups = permitted
    hidden: dict[str, list[Any]] = {}
    for group in permitted:
        if group.topics is not None:
            group.topics, hidden[group.group_id] = allowed(
                ctx,
                Operation.DESCRIBE,
                Resource.TOPIC,
                group.topics,
                lambda topic: topic.topic_name,
            )

    def finish(response: Any) -> Any:
        for group in response.groups:
            group.topics = [
                topic
                for topic in group.topics
                if ctx.allows(Operation.DESCRIBE, Resource.TOPIC, topic.topic_name, quietly=True)
            ]
            group.topics += [
                described_offsets.DescribeShareGroupOffsetsResponseTopic(
                    topic_name=topic.topic_name,
                    partitions=[
                        described_offsets.DescribeShareGroupOffsetsResponsePartition(
                            partition_index=index,
                            error_code=_TOPIC_DENIED,
                            error_message="Topic authorization failed.",
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in hidden.get(group.group_id, ())
            ]
        response.groups += [
            described_offsets.DescribeShareGroupOffsetsResponseGroup(
                group_id=group.group_id, error_code=_GROUP_DENIED
            )
            for group in rejected
        ]
        return response

    return finish


def alter_share_group_offsets(ctx: Context, request: Any) -> Finish | Denied | None:
    """Require READ on the group and on each topic."""
    if not serves_share_groups(ctx):
        return None
    if not ctx.allows(Operation.READ, Resource.GROUP, request.group_id):
        return Denied(AlterShareGroupOffsetsResponse(error_code=_GROUP_DENIED))
    request.topics, rejected = allowed(
        ctx, Operation.READ, Resource.TOPIC, request.topics, lambda topic: topic.topic_name
    )

    def finish(response: Any) -> Any:
        if response.error_code == ErrorCode.NONE:
            response.responses += [
                altered.AlterShareGroupOffsetsResponseTopic(
                    topic_name=topic.topic_name,
                    partitions=[
                        altered.AlterShareGroupOffsetsResponsePartition(
                            partition_index=partition.partition_index, error_code=_TOPIC_DENIED
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in rejected
            ]
        return response

    return finish


def delete_share_group_offsets(ctx: Context, request: Any) -> Finish | Denied | None:
    """Require DELETE on the group and READ on each topic."""
    if not serves_share_groups(ctx):
        return None
    if not ctx.allows(Operation.DELETE, Resource.GROUP, request.group_id):
        return Denied(DeleteShareGroupOffsetsResponse(error_code=_GROUP_DENIED))
    request.topics, rejected = allowed(
        ctx, Operation.READ, Resource.TOPIC, request.topics, lambda topic: topic.topic_name
    )

    def finish(response: Any) -> Any:
        if response.error_code == ErrorCode.NONE:
            response.responses += [
                DeleteShareGroupOffsetsResponseTopic(
                    topic_name=topic.topic_name,
                    error_code=_TOPIC_DENIED,
                    error_message="Topic authorization failed.",
                )
                for topic in rejected
            ]
        return response

    return finish


def list_groups(ctx: Context, _request: Any) -> Finish | None:
    """Show all groups with DESCRIBE on the cluster, otherwise those with DESCRIBE on the group."""
    if ctx.allows(Operation.DESCRIBE, Resource.CLUSTER, quietly=True):
        return None
    return _omitting(ctx, "groups", Resource.GROUP, lambda listed: listed.group_id)


def offset_fetch(ctx: Context, request: Any) -> Finish | Denied:
    """Require DESCRIBE on each group and topic.

    If the request asks for all topics, those without DESCRIBE are omitted.
    """
    if ctx.version < SEVERAL_GROUPS_SINCE:
        return _older_offset_fetch(ctx, request)
    request.groups, rejected = allowed(
        ctx, Operation.DESCRIBE, Resource.GROUP, request.groups, lambda group: group.group_id
    )
    hidden = [_hide_topics(ctx, group) for group in request.groups]

    def finish(response: OffsetFetchResponse) -> OffsetFetchResponse:
        for group, topics in zip(response.groups, hidden, strict=True):
            group.topics = _visible(ctx, group.topics) + [
                error_element(OffsetFetchResponseTopics, ctx.version, topic, _TOPIC_DENIED)
                for topic in topics
            ]
        response.groups += [
            OffsetFetchResponseGroup(group_id=group.group_id, error_code=_GROUP_DENIED)
            for group in rejected
        ]
        return response

    return finish


def _older_offset_fetch(ctx: Context, request: Any) -> Finish | Denied:
    if not ctx.allows(Operation.DESCRIBE, Resource.GROUP, request.group_id):
        return Denied(error_response(OffsetFetchResponse, ctx.version, request, _GROUP_DENIED))
    hidden = _hide_topics(ctx, request)

    def finish(response: OffsetFetchResponse) -> OffsetFetchResponse:
        response.topics = _visible(ctx, response.topics) + [
            error_element(OffsetFetchResponseTopic, ctx.version, topic, _TOPIC_DENIED)
            for topic in hidden
        ]
        return response

    return finish


OFFSET_TOPIC_IDS_SINCE: Final = 10
"""First version of OffsetFetch that gives topics by id."""


def _hide_topics(ctx: Context, asked: Any) -> list[Any]:
    """Remove the topics without DESCRIBE from the request and return them."""
    if asked.topics is None:
        return []
    asked.topics, hidden = _describable(ctx, asked.topics)
    return hidden


def _visible(ctx: Context, topics: list[Any]) -> list[Any]:
    """Topics of the response that the caller may describe."""
    return _describable(ctx, topics, quietly=True)[0]


def _describable(
    ctx: Context, topics: list[Any], *, quietly: bool = False
) -> tuple[list[Any], list[Any]]:
    return allowed(
        ctx,
        Operation.DESCRIBE,
        Resource.TOPIC,
        topics,
        lambda topic: _name(ctx, topic, topic.name, ids_since=OFFSET_TOPIC_IDS_SINCE),
        quietly=quietly,
    )


# Transactions -------------------------------------------------------------------------------------


def init_producer_id(ctx: Context, request: Any) -> Denied | None:
    """Require WRITE on the transactional id, else IDEMPOTENT_WRITE or WRITE on any topic."""
    if request.transactional_id is not None:
        resource = Resource.TRANSACTIONAL_ID
        permitted = ctx.allows(Operation.WRITE, resource, request.transactional_id)
    else:
        resource = Resource.CLUSTER
        permitted = ctx.allows_any(Operation.WRITE, Resource.TOPIC) or ctx.allows(
            Operation.IDEMPOTENT_WRITE, resource
        )
    if permitted:
        return None
    return Denied(error_response(InitProducerIdResponse, ctx.version, request, ERRORS[resource]))


def add_partitions_to_txn(ctx: Context, request: Any) -> Denied | None:
    """Require WRITE on the transactional id and each topic, or CLUSTER_ACTION for brokers."""
    if ctx.version >= SEVERAL_TRANSACTIONS_SINCE:
        if ctx.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER):
            return None
        return Denied(AddPartitionsToTxnResponse(error_code=ERRORS[Resource.CLUSTER]))
    [transaction] = transactions_of(ctx, request)
    id_type = Resource.TRANSACTIONAL_ID
    if not ctx.allows(Operation.WRITE, id_type, transaction.transactional_id):
        errors = dict.fromkeys(partitions_of(transaction.topics), ERRORS[id_type])
        return Denied(transactions_response(ctx, [transaction_result(ctx, transaction, errors)]))
    _, denied = allowed(
        ctx, Operation.WRITE, Resource.TOPIC, transaction.topics, lambda topic: topic.name
    )
    if not denied:
        return None
    errors = rejected_partitions(ctx, transaction.topics, {topic.name for topic in denied})
    return Denied(transactions_response(ctx, [transaction_result(ctx, transaction, errors)]))


def describe_transactions(ctx: Context, request: Any) -> Finish:
    """Require DESCRIBE on each transactional id; omit topics without DESCRIBE."""
    resource = Resource.TRANSACTIONAL_ID
    request.transactional_ids, denied = allowed(
        ctx, Operation.DESCRIBE, resource, request.transactional_ids, str
    )

    def finish(response: Any) -> Any:
        for state in response.transaction_states:
            state.topics, _ = allowed(
                ctx,
                Operation.DESCRIBE,
                Resource.TOPIC,
                state.topics,
                lambda topic: topic.topic,
                quietly=True,
            )
        response.transaction_states += [
            TransactionState(error_code=ERRORS[resource], transactional_id=each) for each in denied
        ]
        return response

    return finish


def list_transactions(ctx: Context, _request: Any) -> Finish:
    """Omit transactional ids without DESCRIBE."""
    return _omitting(
        ctx,
        "transaction_states",
        Resource.TRANSACTIONAL_ID,
        lambda listed: listed.transactional_id,
    )


# Delegation tokens --------------------------------------------------------------------------------


def create_delegation_token(ctx: Context, request: Any) -> Denied | None:
    """Require CREATE_TOKENS on the owner if that is not the caller."""
    owner = requested_owner(ctx.caller, request)
    if requests_problem(ctx) or owner == ctx.caller.principal:
        return None
    if ctx.allows(Operation.CREATE_TOKENS, Resource.USER, str(owner)):
        return None
    error = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    return Denied(creation_refusal(ctx.caller, request, error))


def describe_delegation_token(ctx: Context, _request: Any) -> Finish:
    """Omit the tokens of others that the caller may not describe."""

    def is_visible(token: Any) -> bool:
        owner = Principal(token.principal_type, token.principal_name)
        renewers = [Principal(one.principal_type, one.principal_name) for one in token.renewers]
        return (
            ctx.caller.principal in (owner, *renewers)
            or ctx.allows(
                Operation.DESCRIBE, Resource.DELEGATION_TOKEN, token.token_id, quietly=True
            )
            or ctx.allows(Operation.DESCRIBE_TOKENS, Resource.USER, str(owner), quietly=True)
        )

    def finish(response: Any) -> Any:
        response.tokens = [token for token in response.tokens if is_visible(token)]
        return response

    return finish


SPECIAL_CHECKS: Final[Mapping[ApiKey, AuthorizationCheck]] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.METADATA: metadata,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _heartbeat(
        serves_consumer_groups, ConsumerGroupHeartbeatResponse
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _describe(
        serves_consumer_groups, described.DescribedGroup, _topics_of
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: _heartbeat(
        serves_share_groups, ShareGroupHeartbeatResponse, is_member_id
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: _describe(
        serves_share_groups, described_shares.DescribedGroup, _shared_topics_of
    ),
    ApiKey.SHARE_FETCH: share_records,
    ApiKey.SHARE_ACKNOWLEDGE: share_records,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: describe_share_group_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: alter_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: delete_share_group_offsets,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.CREATE_DELEGATION_TOKEN: create_delegation_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: describe_delegation_token,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
    **STREAMS_CHECKS,
}
"""The checks of the APIs that are declared as `SPECIAL`."""

"""Rules for topics: which may be created, grown or deleted, and the result.

Owns the validation of names, counts, replicas and configs, the limits of a request, and the error
of each rejection. It must never change anything, generate an id, or know quota or disk. Invariants:
an accepted plan can be applied to the image that it was made from; there is one outcome for each
item of a request, in its order; a topic is recorded for the quota once, however often the request
is planned. Kafka's ``ReplicationControlManager``, ``ControllerMutationQuota`` (KIP-599) and
``org.apache.kafka.common.internals.Topic``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from minibroker.broker.metadata.image import (
    ACTIVITY_TOPIC,
    EMPTY,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    Change,
    ChangeRejected,
    Image,
    LeadersElected,
    PartitionRegistration,
    PartitionsAdded,
    Plan,
    Topic,
    TopicCreated,
    TopicDeleted,
    Uuid,
    apply,
)
from minibroker.broker.metadata.layout import (
    FIRST_LEADER_EPOCH,
    LEADER_EPOCH_MAX,
    TopicNode,
    make_partition,
)
from minibroker.broker.settings import (
    ACTIVITY_ENABLE,
    ACTIVITY_RETENTION_BYTES,
    DEFAULT_REPLICATION_FACTOR,
    NUM_PARTITIONS,
    OFFSETS_TOPIC_NUM_PARTITIONS,
    OFFSETS_TOPIC_SEGMENT_BYTES,
    SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS,
    SHARE_COORDINATOR_STATE_TOPIC_SEGMENT_BYTES,
    TRANSACTION_STATE_LOG_NUM_PARTITIONS,
    TRANSACTION_STATE_LOG_SEGMENT_BYTES,
    Settings,
)
from minibroker.broker.settings.setting import INT_MAX, BadValueError
from minibroker.broker.settings.topics import parse_topic_value
from minibroker_protocol.errors import ErrorCode

NAME_MAX_CHARACTERS = 249
ACTIVITY_SEGMENTS = 8
"""Segments of a full activity topic: a complete segment is deleted at a time."""

PARTITIONS_MAX = 10_000
"""Maximum number of partitions of a topic, so that its node stays below the size limit."""

INTERNAL_TOPICS = (OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_STATE_TOPIC, ACTIVITY_TOPIC)
"""Topics that only the broker itself creates and writes."""

INTERNAL_TO_CLIENTS = frozenset({OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_STATE_TOPIC})
"""Internal topics as reported to clients, which are Kafka's own only: consumers skip internal
topics in patterns, and Spark's connector silently reads nothing of them.
"""

RESERVED_TOPICS = ("__cluster_metadata",)

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class NewTopic(NamedTuple):
    """A requested topic: -1 is the default; assignments map partitions to replicas."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    config: Sequence[tuple[str, str | None]] = ()


class NewPartitions(NamedTuple):
    """Requested partitions: the new ``total``, and the replicas of each added one."""

    name: str
    total: int
    assignments: Sequence[Sequence[int]] | None = None


class TopicOutcome(NamedTuple):
    """Outcome of one topic: the current topic, or why it was rejected.

    A deleted topic is as it was before; ``config`` is the config of a created one.
    """

    name: str
    rejection: ChangeRejected | None
    topic: Topic | None = None
    config: Mapping[str, str] = EMPTY


TopicPlan = Plan[tuple[TopicOutcome, ...]]


def name_problem(name: str) -> str | None:
    """Return why a text is not a valid topic name, or None if it is."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_MAX_CHARACTERS:
        return f"its length of {len(name)} exceeds the {NAME_MAX_CHARACTERS} characters allowed"
    if not _LEGAL_NAME.fullmatch(name):
        return "it has characters other than ASCII letters and digits, '.', '_' and '-'"
    return None


def colliding(name: str, existing: Iterable[str], *, ignores_case: bool = False) -> str | None:
    """Return a topic that differs only in '.' and '_', which metrics could not distinguish.

    With ``ignores_case`` also one that differs in case: both would have the same directory.
    """
    if "." not in name and "_" not in name and not ignores_case:
        return None

    def unified(name: str) -> str:
        name = name.replace(".", "_")
        return name.lower() if ignores_case else name

    return next(
        (other for other in existing if other != name and unified(other) == unified(name)), None
    )


PlannedT = TypeVar("PlannedT")

Allow = Callable[[int], bool]
"""Called with a number of partitions; returns whether they may be created or deleted."""

QUOTA_EXCEEDED: Final = ChangeRejected(
    ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
)

FreeBytes = Callable[[], int]
"""Returns the free bytes where partitions are stored."""

PARTITION_BYTES: Final = 16 * 1024
"""Size of an empty partition's files, in whole pages."""

RESERVED_BYTES: Final = 256 * 1024
"""Space that must stay free for appends to existing partitions."""


def unlimited() -> int:
    """Return more bytes than are ever needed."""
    return 2**62


def allow_all(partitions: int) -> bool:
    """Accept every mutation."""
    del partitions
    return True


class MutationLimits:
    """Limits on the mutations of one request: quota and disk space."""

    def __init__(
        self,
        allow: Allow,
        *,
        counts: bool = True,
        free_bytes: FreeBytes = unlimited,
        ignores_case: bool = False,
    ) -> None:
        """Without ``counts`` nothing is recorded for the quota.

        With ``ignores_case``, names of directories that differ only in case are the same.
        """
        self.ignores_case: Final = ignores_case
        self._allow = allow if counts else allow_all
        self._free_bytes = free_bytes
        self._decisions: dict[str, bool] = {}
        self._needed_bytes: dict[str, int] = {}

    def check(self, name: str, plan: PlannedT, partitions: int) -> PlannedT | ChangeRejected:
        """Return the plan for a topic, or a rejection if it exceeds a limit."""
        self._needed_bytes[name] = partitions * PARTITION_BYTES
        needed, free = sum(self._needed_bytes.values()) + RESERVED_BYTES, self._free_bytes()
        if 0 <= free < needed:
            del self._needed_bytes[name]
            text = f"{partitions} partitions need {needed} bytes, and {free} are free"
            return ChangeRejected(ErrorCode.KAFKA_STORAGE_ERROR, text)
        if name not in self._decisions:
            self._decisions[name] = self._allow(partitions)
        return plan if self._decisions[name] else QUOTA_EXCEEDED


def plan_creations(
    image: Image,
    settings: Settings,
    topics: Sequence[NewTopic],
    limits: MutationLimits,
    new_id: Callable[[], Uuid],
) -> TopicPlan:
    """Plan the creation of topics independently of each other."""
    repeated = _repeated(new.name for new in topics)
    outcomes, changes = list[TopicOutcome](), list[Change]()
    for new in topics:
        if new.name in repeated:
            outcomes.append(_duplicate(new.name))
            continue
        plan = plan_creation(image, settings, new, new_id(), ignores_case=limits.ignores_case)
        if not isinstance(plan, ChangeRejected):
            plan = limits.check(new.name, plan, len(plan.topic.partitions))
        if isinstance(plan, ChangeRejected):
            outcomes.append(TopicOutcome(new.name, plan))
            continue
        outcomes.append(TopicOutcome(new.name, None, plan.topic, plan.config))
        changes.append(plan)
        image = apply(image, plan)  # so that later topics see it
    return Plan(tuple(outcomes), changes)


def plan_additions(
    image: Image, requested: Sequence[NewPartitions], limits: MutationLimits
) -> TopicPlan:
    """Plan the addition of partitions to topics independently of each other."""
    repeated = _repeated(new_partitions.name for new_partitions in requested)
    outcomes, changes = list[TopicOutcome](), list[Change]()
    for new_partitions in requested:
        name = new_partitions.name
        if name in repeated:
            outcomes.append(_duplicate(name))
            continue
        plan = plan_new_partitions(image, new_partitions)
        if not isinstance(plan, ChangeRejected):
            plan = limits.check(name, plan, len(plan))
        if isinstance(plan, ChangeRejected):
            outcomes.append(TopicOutcome(name, plan))
            continue
        change = PartitionsAdded(name, plan)
        outcomes.append(TopicOutcome(name, None, apply(image, change).topics[name]))
        changes.append(change)
    return Plan(tuple(outcomes), changes)


def plan_deletions(image: Image, names: Sequence[str], limits: MutationLimits) -> TopicPlan:
    """Plan the deletion of topics independently of each other."""
    repeated = _repeated(names)
    outcomes, changes = list[TopicOutcome](), list[Change]()
    for name in names:
        if name in repeated:
            outcomes.append(_duplicate(name))
            continue
        plan = plan_deletion(image, name)
        if not isinstance(plan, ChangeRejected):
            plan = limits.check(name, plan, len(plan.partitions))
        if isinstance(plan, ChangeRejected):
            outcomes.append(TopicOutcome(name, plan))
            continue
        outcomes.append(TopicOutcome(name, None, plan))
        changes.append(TopicDeleted(plan.name, plan.topic_id))
    return Plan(tuple(outcomes), changes)


def reject_topics(names: Iterable[str], rejection: ChangeRejected) -> tuple[TopicOutcome, ...]:
    """Return the outcomes if all topics are rejected for the same reason."""
    return tuple(TopicOutcome(name, rejection) for name in names)


def _repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def _duplicate(name: str) -> TopicOutcome:
    return TopicOutcome(name, ChangeRejected(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))


def plan_creation(
    image: Image, settings: Settings, new: NewTopic, topic_id: Uuid, *, ignores_case: bool = False
) -> TopicCreated | ChangeRejected:
    """Return the change that creates a topic, or the reason of its rejection.

    An internal topic is always created as the settings of the broker determine.
    """
    rejection = _reject_name(image, new.name, ignores_case) or _reject_config(new)
    if rejection is not None:
        return rejection
    make_internal = internal_topics(settings).get(new.name)
    if make_internal is not None:
        return make_internal(settings, image.controller_id, topic_id)
    partitions = (
        _place_as_requested(image, new)
        if new.assignments
        else _place_by_default(image, settings, new)
    )
    if isinstance(partitions, ChangeRejected):
        return partitions
    config = {name: value for name, value in new.config if value is not None}
    return TopicCreated(Topic(new.name, topic_id, partitions), config)


def plan_new_partitions(
    image: Image, request: NewPartitions
) -> tuple[PartitionRegistration, ...] | ChangeRejected:
    """Return the partitions to add to a topic, or the reason of the rejection."""
    topic = image.topics.get(request.name)
    if topic is None:
        return ChangeRejected(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{request.name}'."
        )
    if topic.internal:
        return _reject_internal(request.name)
    present = len(topic.partitions)
    if request.total <= present:
        return ChangeRejected(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{request.name}' has {present} partition(s); {request.total} is no increase.",
        )
    if request.total > PARTITIONS_MAX:
        return _reject_count(request.total)
    indexes = range(present, request.total)
    factor = len(topic.partitions[0].replicas)
    if request.assignments is None:
        return _place_replicas(image, indexes, factor)
    if len(request.assignments) != len(indexes):
        return ChangeRejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{len(indexes)} partition(s) were to be added, but {len(request.assignments)} "
            "assignment(s) were given.",
        )
    made = []
    for index, replicas in zip(indexes, request.assignments, strict=True):
        rejection = _reject_replicas(image, replicas, factor)
        if rejection is not None:
            return rejection
        made.append(make_partition(index, tuple(replicas)))
    return tuple(made)


def plan_elections(
    image: Image, name: str, partition: int | None, epochs: int
) -> Plan[int | ChangeRejected]:
    """Raise the leader epochs of a topic's partitions, or of one, as elections of leaders do.

    Answers with the number of partitions.
    """
    topic = image.topics.get(name)
    if topic is None or (partition is not None and partition >= len(topic.partitions)):
        text = f"There is no partition {partition or 0} of a topic '{name}'."
        return Plan(ChangeRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text))
    if topic.internal:
        return Plan(_reject_internal(name))
    raised = {
        each.index: each.leader_epoch + epochs
        for each in topic.partitions
        if partition in (None, each.index)
    }
    if max(raised.values()) > LEADER_EPOCH_MAX:
        text = f"The leader epoch of '{name}' cannot exceed {LEADER_EPOCH_MAX}."
        return Plan(ChangeRejected(ErrorCode.INVALID_REQUEST, text))
    return Plan(len(raised), [LeadersElected(name, raised)])


def plan_deletion(image: Image, name: str) -> Topic | ChangeRejected:
    """Return the topic to delete, or the reason of the rejection."""
    topic = image.topics.get(name)
    if topic is None:
        return ChangeRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
    return _reject_internal(name) if topic.internal else topic


def offsets_topic(settings: Settings, broker_id: int, topic_id: Uuid) -> TopicCreated:
    """Return the internal topic of committed offsets, created at the first start."""
    count = settings[OFFSETS_TOPIC_NUM_PARTITIONS]
    partitions = tuple(make_partition(index, (broker_id,)) for index in range(count))
    config = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(settings[OFFSETS_TOPIC_SEGMENT_BYTES]),
    }
    return TopicCreated(Topic(OFFSETS_TOPIC, topic_id, partitions, internal=True), config)


def transaction_state_topic(settings: Settings, broker_id: int, topic_id: Uuid) -> TopicCreated:
    """Return the internal topic of transactional ids, created when a client looks for one."""
    count = settings[TRANSACTION_STATE_LOG_NUM_PARTITIONS]
    partitions = tuple(make_partition(index, (broker_id,)) for index in range(count))
    config = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": str(settings[TRANSACTION_STATE_LOG_SEGMENT_BYTES]),
        "unclean.leader.election.enable": "false",
    }
    topic = Topic(TRANSACTION_STATE_TOPIC, topic_id, partitions, internal=True)
    return TopicCreated(topic, config)


def share_state_topic(settings: Settings, broker_id: int, topic_id: Uuid) -> TopicCreated:
    """Return the internal topic of share partitions, created for the first share group."""
    count = settings[SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS]
    partitions = tuple(make_partition(index, (broker_id,)) for index in range(count))
    config = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "retention.ms": "-1",
        "segment.bytes": str(settings[SHARE_COORDINATOR_STATE_TOPIC_SEGMENT_BYTES]),
    }
    return TopicCreated(Topic(SHARE_STATE_TOPIC, topic_id, partitions, internal=True), config)


def activity_topic(settings: Settings, broker_id: int, topic_id: Uuid) -> TopicCreated:
    """Return the internal topic of activity events.

    One partition, because all events are in one order.
    """
    size = settings[ACTIVITY_RETENTION_BYTES]
    config = {
        "cleanup.policy": "delete",
        "retention.bytes": str(size),
        "segment.bytes": str(min(size // ACTIVITY_SEGMENTS, INT_MAX)),
    }
    partitions = (make_partition(0, (broker_id,)),)
    return TopicCreated(Topic(ACTIVITY_TOPIC, topic_id, partitions, internal=True), config)


MakeTopic = Callable[[Settings, int, Uuid], TopicCreated]


def internal_topics(settings: Settings) -> Mapping[str, MakeTopic]:
    """Return the functions that create the internal topics, by topic name."""
    return {
        **topics_at_start(settings),
        TRANSACTION_STATE_TOPIC: transaction_state_topic,
        SHARE_STATE_TOPIC: share_state_topic,
    }


def topics_at_start(settings: Settings) -> Mapping[str, MakeTopic]:
    """Return those of them that are created at the first start."""
    made: dict[str, MakeTopic] = {OFFSETS_TOPIC: offsets_topic}
    return made | ({ACTIVITY_TOPIC: activity_topic} if settings[ACTIVITY_ENABLE] else {})


def topic_of(name: str, node: TopicNode, topic_id: Uuid, broker_id: int) -> Topic:
    """Return the topic that a node describes; this broker leads the partitions it has replicas of.

    All its replicas are in sync: with one broker there is no other state.
    """
    partitions = tuple(
        PartitionRegistration(index, broker_id, FIRST_LEADER_EPOCH, replicas, (broker_id,))
        if broker_id in replicas
        else make_partition(index, replicas)
        for index, replicas in enumerate(node.replicas)
    )
    return Topic(name, topic_id, partitions, internal=name in INTERNAL_TOPICS)


def _reject_name(image: Image, name: str, ignores_case: bool) -> ChangeRejected | None:
    problem = name_problem(name)
    if problem is not None:
        return ChangeRejected(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name '{name}' is invalid: {problem}."
        )
    if name in RESERVED_TOPICS:
        return ChangeRejected(ErrorCode.INVALID_REQUEST, f"Topic '{name}' is Kafka's own.")
    if name in image.topics:
        return ChangeRejected(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = colliding(name, image.topics, ignores_case=ignores_case)
    if other is not None:
        return ChangeRejected(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {other}",
        )
    return None


def _reject_config(new: NewTopic) -> ChangeRejected | None:
    for name, value in new.config:
        try:
            parse_topic_value(name, value)
        except BadValueError as error:
            return ChangeRejected(ErrorCode.INVALID_CONFIG, str(error))
    return None


def _reject_internal(name: str) -> ChangeRejected:
    return ChangeRejected(
        ErrorCode.INVALID_REQUEST,
        f"Topic '{name}' is internal: the broker keeps its own records in it, so it stays as it "
        "is.",
    )


def _reject_count(count: int) -> ChangeRejected:
    return ChangeRejected(
        ErrorCode.INVALID_PARTITIONS,
        f"{count} partitions are more than the {PARTITIONS_MAX} that a topic may have.",
    )


def _place_by_default(
    image: Image, settings: Settings, new: NewTopic
) -> tuple[PartitionRegistration, ...] | ChangeRejected:
    count, factor = new.num_partitions, new.replication_factor
    if factor < -1 or factor == 0:
        return ChangeRejected(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count < -1 or count == 0:
        return ChangeRejected(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions must be larger than 0, or -1 to use the default value.",
        )
    count = settings[NUM_PARTITIONS] if count == -1 else count
    if count > PARTITIONS_MAX:
        return _reject_count(count)
    factor = settings[DEFAULT_REPLICATION_FACTOR] if factor == -1 else factor
    return _place_replicas(image, range(count), factor)


def _place_replicas(
    image: Image, indexes: range, factor: int
) -> tuple[PartitionRegistration, ...] | ChangeRejected:
    """Place replicas round robin, so that each broker leads its share of partitions."""
    ids = sorted(image.brokers)
    if factor > len(ids):
        return ChangeRejected(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication factor "
            f"of {factor} cannot be reached because only {len(ids)} broker(s) are registered.",
        )
    return tuple(
        make_partition(index, tuple(ids[(index + replica) % len(ids)] for replica in range(factor)))
        for index in indexes
    )


def _place_as_requested(
    image: Image, new: NewTopic
) -> tuple[PartitionRegistration, ...] | ChangeRejected:
    if new.replication_factor != -1 or new.num_partitions != -1:
        return ChangeRejected(
            ErrorCode.INVALID_REQUEST,
            "With a manual partition assignment, replication factor and number of partitions "
            "must both be -1.",
        )
    replicas_by_index: Mapping[int, Sequence[int]] = dict(new.assignments)
    if sorted(index for index, _ in new.assignments) != list(range(len(new.assignments))):
        return ChangeRejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence, each assigned once",
        )
    if len(replicas_by_index) > PARTITIONS_MAX:
        return _reject_count(len(replicas_by_index))
    factor = len(replicas_by_index[0])
    for replicas in replicas_by_index.values():
        rejection = _reject_replicas(image, replicas, factor)
        if rejection is not None:
            return rejection
    return tuple(
        make_partition(index, tuple(replicas_by_index[index]))
        for index in range(len(replicas_by_index))
    )


def _reject_replicas(image: Image, replicas: Sequence[int], factor: int) -> ChangeRejected | None:
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    if not replicas:
        return ChangeRejected(
            code, "The manual partition assignment includes an empty replica list."
        )
    for broker_id in replicas:
        if broker_id not in image.brokers:
            return ChangeRejected(
                code,
                f"The manual partition assignment includes broker {broker_id}, but no such "
                "broker is registered.",
            )
    if len(set(replicas)) != len(replicas):
        return ChangeRejected(
            code, "The manual partition assignment includes a broker more than once."
        )
    if len(replicas) != factor:
        return ChangeRejected(
            code, "The manual partition assignment includes partitions of unequal replication."
        )
    return None

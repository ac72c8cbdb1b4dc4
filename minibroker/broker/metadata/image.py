"""The image of the cluster metadata in every process, and the changes between two images.

Owns brokers, topics, partitions and configs, how a change alters them, the form of a plan (the
changes and the answer that a request leads to), and the placement: which I/O worker owns a
partition or a group. It must never know where metadata is stored or how changes are sent.
Invariants: the same changes in the same order result in the same image in every process, except for
the types of configs that a process does not need; an image never changes; the same name has the
same owner in every process and after every restart, so an owner needs no lock and a request can be
split without asking another process. Groups follow their partition of ``__consumer_offsets`` as in
Kafka's ``GroupMetadataManager.partitionFor``. Kafka's ``MetadataImage`` and ``MetadataDelta``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from sys import intern
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar
from zlib import crc32

from minibroker.broker.security.acl import AclRule, Acls, Pattern
from minibroker.broker.settings.dynamic import BROKERS
from minibroker_protocol.errors import ErrorCode

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_STATE_TOPIC: Final = "__share_group_state"
ACTIVITY_TOPIC: Final = "__minibroker_activity"


def partition_owner(topic: str, partition: int, workers: int) -> int:
    """Return the index of the I/O worker that owns a partition; partitions are assigned round
    robin.
    """
    return (crc32(topic.encode()) + partition) % workers


HASHES_KEPT_MAX: Final = 1024
HASHED_CHARACTERS_MAX: Final = 255
"""Longer texts are hashed each time: clients choose them."""


def java_string_hash(text: str) -> int:
    """``String.hashCode`` of Java, as a signed 32-bit integer (over UTF-16 code units)."""
    return _kept_hash(text) if len(text) <= HASHED_CHARACTERS_MAX else _hash(text)


def _hash(text: str) -> int:
    units = memoryview(text.encode("utf-16-le")).cast("H")
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value


_kept_hash: Final = lru_cache(HASHES_KEPT_MAX)(_hash)


def offsets_partition(group_id: str, partitions: int) -> int:
    """Partition of ``__consumer_offsets`` that keeps a group, as Kafka's ``Utils.abs`` has it."""
    return (java_string_hash(group_id) & 0x7FFFFFFF) % partitions


def group_owner(group_id: str, partitions: int, workers: int) -> int:
    """Index of the I/O worker that coordinates a group."""
    return partition_owner(OFFSETS_TOPIC, offsets_partition(group_id, partitions), workers)


def transaction_partition(transactional_id: str, partitions: int) -> int:
    """Partition of ``__transaction_state`` that keeps a transactional id, by the same hash."""
    return (java_string_hash(transactional_id) & 0x7FFFFFFF) % partitions


def transaction_owner(transactional_id: str, partitions: int, workers: int) -> int:
    """Index of the I/O worker that coordinates the transactions of a transactional id."""
    index = transaction_partition(transactional_id, partitions)
    return partition_owner(TRANSACTION_STATE_TOPIC, index, workers)


def share_state_partition(key: str, partitions: int) -> int:
    """Partition of ``__share_group_state`` that keeps a share partition, given its key."""
    return (java_string_hash(key) & 0x7FFFFFFF) % partitions


Uuid: TypeAlias = bytes
"""16 bytes, as in `protocol`."""

TOPIC = "topics"
BROKER = BROKERS
IP = "ips"
USER = "users"
CLIENT = "clients"
GROUP = "groups"
CLIENT_METRICS = "client-metrics"
BROKER_LOGGER = "broker-loggers"
DELEGATION_TOKEN = "delegation-tokens"  # noqa: S105 - not a secret
"""Kinds of resources that have configs: the first half of a key of `Image.configs`."""

ALL_KINDS: Final = frozenset(
    (TOPIC, BROKER, IP, USER, CLIENT, GROUP, CLIENT_METRICS, BROKER_LOGGER, DELEGATION_TOKEN)
)

EMPTY: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class PartitionRegistration:
    """One partition: ``leader`` is a broker id or -1, the tuples contain broker ids."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Topic(NamedTuple):
    """One topic; ``partitions[n].index == n``."""

    name: str
    topic_id: Uuid
    partitions: tuple[PartitionRegistration, ...]
    internal: bool = False


class Broker(NamedTuple):
    """One broker; ``endpoints`` maps listeners to addresses: name -> (host, port).

    A client of a listener ``by_connection`` gets the address that it connected to, if it is known.
    """

    broker_id: int
    rack: str | None
    endpoints: Mapping[str, tuple[str, int]]
    by_connection: frozenset[str] = frozenset()

    def endpoint(
        self, listener: str, connected_to: tuple[str, int] | None
    ) -> tuple[str, int] | None:
        """The address for a client of a listener, which connected to another one if that is known.

        None without such a listener.
        """
        if connected_to is not None and listener in self.by_connection:
            return connected_to
        return self.endpoints.get(listener)


_NO_LEVELS: Final[Mapping[str, int]] = {}


class FinalizedLevels(NamedTuple):
    """Finalized levels by feature name, of those that were set; ``epoch`` counts the changes.

    Clients keep the levels with the largest epoch.
    """

    levels: Mapping[str, int] = _NO_LEVELS
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Image:
    """Cluster metadata after change number ``number`` of a controller epoch.

    ``broker_configs_number`` is the number of the last change of broker configs. ``topic_names``
    maps topic ids to names; ``configs`` contains the configs of each resource by (type, name),
    without defaults.
    """

    controller_epoch: int = 0
    number: int = 0
    cluster_id: str = ""
    controller_id: int = -1
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    broker_configs_number: int = 0
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topic_names: Mapping[Uuid, str] = field(default_factory=dict)
    configs: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    acls: Acls = field(default_factory=dict)
    features: FinalizedLevels = field(default_factory=FinalizedLevels)

    def topic_by_id(self, topic_id: Uuid) -> Topic | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, index: int) -> PartitionRegistration | None:
        """The partition, or None if the topic or the partition does not exist."""
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def topic_overrides(self, topic: str) -> Mapping[str, str]:
        """Return the configs of the topic itself, by name."""
        return self.configs.get((TOPIC, topic), EMPTY)

    def brokers_at(
        self, listener: str, connected_to: tuple[str, int] | None = None
    ) -> Iterator[tuple[Broker, str, int]]:
        """Return the brokers with a listener of this name, each with its host and port."""
        for broker in self.brokers.values():
            endpoint = broker.endpoint(listener, connected_to)
            if endpoint is not None:
                yield broker, *endpoint


class TopicCreated(NamedTuple):
    """A topic was created, with its configs."""

    topic: Topic
    config: Mapping[str, str] = EMPTY


class TopicDeleted(NamedTuple):
    """A topic, its partitions and its config were deleted; the id distinguishes later topics of
    the name.
    """

    name: str
    topic_id: Uuid


class PartitionsAdded(NamedTuple):
    """Partitions were added to a topic, with the next indexes."""

    name: str
    partitions: tuple[PartitionRegistration, ...]


class LeadersElected(NamedTuple):
    """Leaders of a topic's partitions were elected again; ``epochs`` are the new ones by index."""

    name: str
    epochs: Mapping[int, int]


class ConfigChanged(NamedTuple):
    """The new config of a resource; empty if nothing is set."""

    kind: str
    name: str
    config: Mapping[str, str]


class AclsChanged(NamedTuple):
    """The new ACLs of a pattern; empty if it has none."""

    pattern: Pattern
    rules: tuple[AclRule, ...]


class FeaturesChanged(NamedTuple):
    """All finalized levels from now on."""

    features: FinalizedLevels


class BrokerChanged(NamedTuple):
    """A broker registered, for the first time or with other endpoints."""

    broker: Broker


class BrokerGone(NamedTuple):
    """A broker has left."""

    broker_id: int


class Reset(NamedTuple):
    """Every topic was deleted, with its config and all committed offsets.

    ``internal`` are the internal topics as they exist from now on: empty, with new ids, and with
    the configs that they had.
    """

    internal: tuple[Topic, ...] = ()


class MetadataRestored(NamedTuple):
    """All metadata but the brokers, as it was when a snapshot was taken."""

    topics: Mapping[str, Topic]
    configs: Mapping[tuple[str, str], Mapping[str, str]]
    acls: Acls
    features: FinalizedLevels


Change: TypeAlias = (
    TopicCreated
    | TopicDeleted
    | PartitionsAdded
    | LeadersElected
    | ConfigChanged
    | AclsChanged
    | FeaturesChanged
    | BrokerChanged
    | BrokerGone
    | Reset
    | MetadataRestored
)


class ChangeRejected(NamedTuple):
    """Reason of a rejection: Kafka's error code and a message."""

    code: ErrorCode
    text: str


AnswerT = TypeVar("AnswerT")


class Plan(NamedTuple, Generic[AnswerT]):
    """What a request changes in an image, and its answer."""

    answer: AnswerT
    changes: Sequence[Change] = ()


ItemT = TypeVar("ItemT", bound="Change")


def plan_of(items: Iterable[ItemT | ChangeRejected]) -> Plan[tuple[ChangeRejected | None, ...]]:
    """Return the plan that makes the changes among the items; it answers with the rejections."""
    planned = list(items)
    return Plan(
        tuple(item if isinstance(item, ChangeRejected) else None for item in planned),
        [item for item in planned if not isinstance(item, ChangeRejected)],
    )


class Update(NamedTuple):
    """Changes that are applied together, numbered and published by the controller."""

    controller_epoch: int
    number: int
    changes: tuple[Change, ...]


class ImageGapError(Exception):
    """An update does not follow the current image; request a complete image."""


def apply_update(image: Image, update: Update) -> Image:
    """Return the image after an update; an update that it already contains changes nothing.

    Raises `ImageGapError` if updates between the two are missing or the controller is another.
    """
    if update.controller_epoch == image.controller_epoch and update.number <= image.number:
        return image
    if (update.controller_epoch, update.number) != (image.controller_epoch, image.number + 1):
        raise ImageGapError(
            f"update {update.number} of controller epoch {update.controller_epoch} does not "
            f"follow image {image.number} of epoch {image.controller_epoch}"
        )
    for change in update.changes:
        image = apply(image, change)
        if isinstance(change, MetadataRestored) or (
            isinstance(change, ConfigChanged) and change.kind == BROKER
        ):
            image = replace(image, broker_configs_number=update.number)
    return replace(image, number=update.number)


def image_of(image: Image, kinds: Collection[str]) -> Image:
    """Return the image with configs of some resource types only."""
    return replace(image, configs=_configs_of(image.configs, kinds))


def _configs_of(
    configs: Mapping[tuple[str, str], Mapping[str, str]], kinds: Collection[str]
) -> Mapping[tuple[str, str], Mapping[str, str]]:
    return {key: config for key, config in configs.items() if key[0] in kinds}


def update_of(update: Update, kinds: Collection[str]) -> Update:
    """Return the update for an image that has only configs of these kinds."""
    changes = tuple(
        change._replace(configs=_configs_of(change.configs, kinds))
        if isinstance(change, MetadataRestored)
        else change
        for change in update.changes
        if not isinstance(change, ConfigChanged) or change.kind in kinds
    )
    return update._replace(changes=changes)


def apply(image: Image, change: Change) -> Image:
    """Return the image after one change, with the same number."""
    match change:
        case TopicCreated(topic, config):
            return _with_topic(image, topic, config)
        case TopicDeleted(name, _):
            return _without_topic(image, name)
        case PartitionsAdded() | LeadersElected():
            changed = _changed(image.topics[change.name], change)
            return replace(image, topics={**image.topics, change.name: changed})
        case ConfigChanged(kind, name, config):
            return replace(image, configs=_with_config(image, (kind, name), config))
        case AclsChanged(pattern, rules):
            acls = {known: value for known, value in image.acls.items() if known != pattern}
            return replace(image, acls={**acls, pattern: rules} if rules else acls)
        case FeaturesChanged(features):
            return replace(image, features=features)
        case BrokerChanged() | BrokerGone():
            return replace(image, brokers=_brokers_after(image, change))
        case Reset() | MetadataRestored():
            return _replaced(image, change)


def _brokers_after(image: Image, change: BrokerChanged | BrokerGone) -> Mapping[int, Broker]:
    if isinstance(change, BrokerChanged):
        return {**image.brokers, change.broker.broker_id: change.broker}
    return {key: broker for key, broker in image.brokers.items() if key != change.broker_id}


def _with_config(
    image: Image, key: tuple[str, str], config: Mapping[str, str]
) -> Mapping[tuple[str, str], Mapping[str, str]]:
    if not config and key not in image.configs:
        return image.configs  # most topics have none: processes see that no config changed
    configs = dict(image.configs)
    configs.pop(key, None)
    if config:
        # Ten thousand users' quotas consist of the same few texts, in every process.
        configs[key] = {intern(name): intern(value) for name, value in config.items()}
    return configs


def _with_topic(image: Image, topic: Topic, config: Mapping[str, str]) -> Image:
    return replace(
        image,
        topics={**image.topics, topic.name: topic},
        topic_names={**image.topic_names, topic.topic_id: topic.name},
        configs=_with_config(image, (TOPIC, topic.name), config),
    )


def _changed(topic: Topic, change: PartitionsAdded | LeadersElected) -> Topic:
    if isinstance(change, PartitionsAdded):
        return topic._replace(partitions=topic.partitions + change.partitions)
    return with_leader_epochs(topic, change.epochs)


def with_leader_epochs(topic: Topic, epochs: Mapping[int, int]) -> Topic:
    """The topic with other leader epochs, by partition index."""
    partitions = tuple(
        replace(each, leader_epoch=epochs.get(each.index, each.leader_epoch))
        for each in topic.partitions
    )
    return topic._replace(partitions=partitions)


def _without_topic(image: Image, name: str) -> Image:
    topics = {known: topic for known, topic in image.topics.items() if known != name}
    return replace(
        image,
        topics=topics,
        topic_names={topic.topic_id: topic.name for topic in topics.values()},
        configs=_with_config(image, (TOPIC, name), EMPTY),
    )


def _replaced(image: Image, change: Reset | MetadataRestored) -> Image:
    if isinstance(change, MetadataRestored):
        names = {topic.topic_id: name for name, topic in change.topics.items()}
        return replace(image, topic_names=names, **change._asdict())
    topics = {topic.name: topic for topic in change.internal}
    return replace(
        image,
        topics=topics,
        topic_names={topic.topic_id: topic.name for topic in change.internal},
        configs={
            (kind, name): config
            for (kind, name), config in image.configs.items()
            if kind != TOPIC or name in topics
        },
    )

"""Opens a config store for a controller: reads the metadata and creates what is missing.

Owns the checks that store, settings and data directory belong together, with a message for each
mismatch, and which topics follow from the partitions on disk if the store was lost. It must never
change what other programs wrote to a store, except for missing ids. Invariant: an image that was
opened contains every topic that has records; a rebuilt topic has the id that its partitions carry,
so their logs are opened and not renamed. What only the store knew stays lost: configs, quotas,
users and ACLs. Kafka's ``KafkaController.onControllerFailover``.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from minibroker.broker.log.data_directory import LoggedTopic
from minibroker.broker.metadata import layout, stored_topics
from minibroker.broker.metadata.acls import load_all_acls
from minibroker.broker.metadata.configs import KINDS, load_config, stored_names
from minibroker.broker.metadata.features import load_features, with_defaults
from minibroker.broker.metadata.image import (
    EMPTY,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TOPIC,
    TRANSACTION_STATE_TOPIC,
    Broker,
    Change,
    ConfigChanged,
    FeaturesChanged,
    Image,
    PartitionRegistration,
    Topic,
    TopicCreated,
    Uuid,
    apply,
)
from minibroker.broker.metadata.layout import ProducerIdBlock, make_partition
from minibroker.broker.metadata.store.tree import Create, NodeExistsError, NoNodeError, Store
from minibroker.broker.metadata.stored_topics import accept_topic, creation
from minibroker.broker.metadata.topics import (
    INTERNAL_TOPICS,
    PARTITIONS_MAX,
    internal_topics,
    name_problem,
)
from minibroker.broker.settings import (
    AUTHORIZER_CLASS_NAME,
    CLUSTER_ID,
    NODE_ID,
    OFFSETS_TOPIC_NUM_PARTITIONS,
    PERSONA,
    SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS,
    TRANSACTION_STATE_LOG_NUM_PARTITIONS,
    ZOOKEEPER_CONNECT,
    Settings,
)
from minibroker_protocol.types import uuid_text


class FoundLogs(NamedTuple):
    """Content of the data directory.

    ``cluster_id`` is read from its mark, None without one. ``rebuild_topics``: the user requested
    to rebuild the topics of a lost store.
    """

    cluster_id: str | None = None
    topics: Mapping[str, LoggedTopic] = {}
    rebuild_topics: bool = False


NO_LOGS: Final = FoundLogs()


class ControllerStartError(Exception):
    """Store, settings and data directory do not match; the message says how to continue."""


def new_uuid(random: Random) -> Uuid:
    """Return a random UUID (version 4), as Kafka: its text never starts with a hyphen, which
    command lines would read as an option.
    """
    while True:
        raw = bytearray(random.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        raw_id = bytes(raw)
        if not uuid_text(raw_id).startswith("-"):
            return raw_id


async def with_topics(
    image: Image, store: Store, random: Random, with_logs: Container[str] = ()
) -> Image:
    """Add the topics of the store to an image, except those that cannot be applied.

    Raises ControllerStartError if such a topic is in ``with_logs``, the topics that have records.
    """
    for name in await store.children(layout.TOPICS):
        stored = await stored_topics.load(store, name)
        accepted = accept_topic(image, image.controller_id, name, stored, lambda: new_uuid(random))
        if accepted.problem and (name in INTERNAL_TOPICS or name in with_logs):
            raise ControllerStartError(
                f"{accepted.problem}; the data directory has records of it: repair the node, or "
                "delete it to start without the topic"
            )
        if accepted.rewritten is not None:
            await store.multi([stored_topics.rewriting(accepted.rewritten, stored)])
        for change in accepted.changes:
            image = apply(image, change)
    return image


async def next_epoch(store: Store) -> int:
    """Increment and return the controller epoch in the store."""
    try:
        found = await store.get(layout.CONTROLLER_EPOCH)
    except NoNodeError:
        await store.create(layout.CONTROLLER_EPOCH, b"1")
        return 1
    epoch = layout.decode_epoch(found.data) + 1
    await store.set(layout.CONTROLLER_EPOCH, str(epoch).encode(), version=found.version)
    return epoch


async def cluster_id(
    store: Store, settings: Settings, random: Random, found_logs: FoundLogs = NO_LOGS
) -> str:
    """Return the cluster id in the store or, for a new store, the one to write.

    Raises ControllerStartError if settings or data directory belong to another cluster, or if the
    store is new and the data directory is not.
    """
    requested, marked_id = settings[CLUSTER_ID], found_logs.cluster_id
    try:
        found = await store.get(layout.CLUSTER_ID)
    except NoNodeError:
        _check_new_store(requested, found_logs)
        return marked_id or requested or _new_cluster_id(settings, random)
    stored_id = layout.decode_cluster_id(found.data)
    if marked_id not in (None, stored_id):
        raise ControllerStartError(
            f"the config store belongs to cluster {stored_id}, the data directory to cluster "
            f"{marked_id}: use the store or the directory of the same cluster"
        )
    if requested not in (None, stored_id):
        raise ControllerStartError(
            f"cluster.id={requested} ({settings.where(CLUSTER_ID)}): the config store belongs to "
            f"cluster {stored_id}; use that id or another data directory"
        )
    return stored_id


def _new_cluster_id(settings: Settings, random: Random) -> str:
    """Return an id in the form of the persona: Redpanda's has a prefix before a plain UUID."""
    persona, raw = settings[PERSONA], new_uuid(random)
    if persona is None or not persona.behaviour.cluster_id_prefix:
        return uuid_text(raw)
    return f"{persona.behaviour.cluster_id_prefix}{UUID(bytes=raw)}"


async def store_cluster_id(store: Store, cluster_id: str) -> None:
    """Store the cluster id if the store is new.

    It comes after the rebuilt topics: a rebuild that was interrupted leaves a store that counts as
    new, so that no topic is missing when the store is used.
    """
    if not await store.exists(layout.CLUSTER_ID):
        await store.create(layout.CLUSTER_ID, layout.encode_cluster_id(cluster_id))


def _check_new_store(requested: str | None, found_logs: FoundLogs) -> None:
    marked_id, topics = found_logs.cluster_id, found_logs.topics
    if marked_id is not None and requested not in (None, marked_id):
        raise ControllerStartError(
            f"the data directory belongs to cluster {marked_id}, and cluster.id={requested} is "
            "set: use that id or another data directory"
        )
    if topics and not found_logs.rebuild_topics:
        partitions = sum(len(logged.partitions) for logged in topics.values())
        raise ControllerStartError(
            f"the config store is empty, and the data directory has {partitions} partitions of "
            f"{len(topics)} topics: restore the store from a backup, or start once with "
            "--recover-topics-from-logs, which rebuilds the topics but not their configs, nor "
            "quotas, users and ACLs"
        )


async def load_configs(store: Store, settings: Settings) -> list[Change]:
    """Read feature levels, configs of all resources but topics, and ACLs if they are used."""
    levels = with_defaults(await load_features(store), settings[PERSONA])
    found: list[Change] = [FeaturesChanged(levels)]
    if settings[AUTHORIZER_CLASS_NAME]:
        try:
            found += [change async for change in load_all_acls(store)]
        except layout.LayoutError as error:
            raise ControllerStartError(f"{error}; repair the node or delete it") from None
    return found + [
        ConfigChanged(kind, name, await load_config(store, kind, name))
        for kind in KINDS
        if kind != TOPIC
        for name in await stored_names(store, kind)
    ]


def check_data_directory(image: Image, settings: Settings, found_logs: FoundLogs = NO_LOGS) -> None:
    """Reject settings and a data directory with which existing records could not be found."""
    if settings[ZOOKEEPER_CONNECT] is not None and found_logs.cluster_id is None:
        _check_unmarked(image, found_logs)
    for topic in image.topics.values():
        other_ids = {p.leader for p in topic.partitions} - set(image.brokers)
        if other_ids:
            raise ControllerStartError(
                f"node.id={settings[NODE_ID]} ({settings.where(NODE_ID)}): the data directory "
                f"belongs to node {min(other_ids)}; set node.id={min(other_ids)} or use another "
                "data directory"
            )
    for name, setting, found_by in (
        (OFFSETS_TOPIC, OFFSETS_TOPIC_NUM_PARTITIONS, "groups find their offsets"),
        (
            TRANSACTION_STATE_TOPIC,
            TRANSACTION_STATE_LOG_NUM_PARTITIONS,
            "transactional ids find their state",
        ),
        (
            SHARE_STATE_TOPIC,
            SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS,
            "share groups find their state",
        ),
    ):
        stored, requested = image.topics.get(name), settings[setting]
        if stored is not None and len(stored.partitions) != requested:
            raise ControllerStartError(
                f"{setting.name}={requested} ({settings.where(setting)}): the data directory has "
                f"{len(stored.partitions)}, by which {found_by}; set that number or use another "
                "data directory"
            )


def _check_unmarked(image: Image, found_logs: FoundLogs) -> None:
    """Reject an unmarked directory of another cluster, all of whose logs would become strays."""
    ids = {logged.topic_id for logged in found_logs.topics.values()}
    if ids and ids.isdisjoint(image.topic_names):
        raise ControllerStartError(
            f"the data directory has partitions of {len(ids)} topics, and cluster "
            f"{image.cluster_id} has none of them: use the cluster that the directory belongs to, "
            "or another directory"
        )


async def register(
    store: Store, broker: Broker, protocols: Mapping[str, str], wall_ms: int
) -> None:
    """Register this broker and elect it as controller, visible to other programs."""
    try:
        await store.multi([
            Create(
                layout.CONTROLLER,
                layout.encode_controller(broker.broker_id, wall_ms),
                ephemeral=True,
            ),
            Create(
                layout.broker_path(broker.broker_id),
                layout.encode_broker(broker, protocols, wall_ms),
                ephemeral=True,
            ),
        ])  # fmt: skip
    except NodeExistsError as error:
        raise ControllerStartError(
            f"{error.path} exists already: another broker uses this config store; stop it or "
            "give this one another node.id and store"
        ) from None


_logger = logging.getLogger(__name__)

_NUMBERS_SHOWN_MAX: Final = 10


async def rebuild_topics(
    store: Store, settings: Settings, found_logs: FoundLogs, broker_id: int, now_ms: int
) -> None:
    """Create each topic that has logs but is not in the store, if the user requested it."""
    if not found_logs.rebuild_topics:
        return
    known = set(await store.children(layout.TOPICS))
    for name, logged in found_logs.topics.items():
        if name in known:
            continue
        problem = name_problem(name) or _number_problem(logged)
        if problem is not None:
            _log("a topic was not rebuilt", topic=name, reason=problem)
            continue
        made = _topic_created(settings, name, logged, broker_id)
        await store.multi(await creation(store, made))
        numbers = {partition.index for partition in made.topic.partitions}
        empty = sorted(numbers - set(logged.partitions))
        _log("a topic was rebuilt", topic=name, partitions=len(numbers), empty=_shown(empty))
    if not await store.exists(layout.PRODUCER_IDS):
        # Producers in the logs have ids from earlier blocks, which were counted from 0.
        block = ProducerIdBlock(now_ms, 1)
        data = layout.encode_producer_ids(broker_id, block)
        await store.multi([Create(layout.PRODUCER_IDS, data)])


def _shown(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_NUMBERS_SHOWN_MAX])) or "none"
    more = len(numbers) - _NUMBERS_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def _number_problem(logged: LoggedTopic) -> str | None:
    number = logged.partitions[-1]
    if number < PARTITIONS_MAX:
        return None
    return f"partition {number} is beyond the {PARTITIONS_MAX} that a topic may have"


def _topic_created(
    settings: Settings, name: str, logged: LoggedTopic, broker_id: int
) -> TopicCreated:
    count = logged.partitions[-1] + 1
    # Partitions of these are created when they are first written.
    if name == OFFSETS_TOPIC:
        count = max(count, settings[OFFSETS_TOPIC_NUM_PARTITIONS])
    elif name == TRANSACTION_STATE_TOPIC:
        count = max(count, settings[TRANSACTION_STATE_LOG_NUM_PARTITIONS])
    elif name == SHARE_STATE_TOPIC:
        count = max(count, settings[SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS])
    make = internal_topics(settings).get(name)
    config = EMPTY if make is None else make(settings, broker_id, logged.topic_id).config
    partitions = tuple[PartitionRegistration, ...](
        make_partition(index, (broker_id,)) for index in range(count)
    )
    return TopicCreated(Topic(name, logged.topic_id, partitions), config)


def _log(message: str, **fields: object) -> None:
    _logger.warning("%s", message, extra={"fields": fields})

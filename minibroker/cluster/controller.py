"""The controller's decisions: the one writer of topics, configs and producer-id blocks.

Owns the order plan, store, image: a change is planned on the image, kept in the store, and only
then part of the image and of what is returned for broadcast.  It must never know who is told or
how.  The invariant: what was returned is in the store, so a controller that is reborn begins with
an image that has it.  Echoes Kafka's ``QuorumController`` and, in what it keeps, the
``KafkaController`` of the ZooKeeper age.

Updates are numbered in the order in which the methods return them; publish them in that order,
which a caller gets by not waiting for anything between the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

import trio

from minibroker.cluster import layout, stored_configs
from minibroker.cluster.configs import KINDS, Alteration, plan_alteration
from minibroker.cluster.image import (
    EMPTY,
    TOPIC,
    Broker,
    BrokerChanged,
    Change,
    ConfigChanged,
    Image,
    PartitionsAdded,
    Reset,
    Topic,
    TopicCreated,
    TopicDeleted,
    Update,
    Uuid,
    apply,
    apply_update,
)
from minibroker.cluster.placement import OFFSETS_TOPIC
from minibroker.cluster.quotas import QuotaChange, plan_change
from minibroker.cluster.store.tree import (
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    Store,
)
from minibroker.cluster.topics import (
    INTERNAL_TOPICS,
    Growth,
    NewTopic,
    Refusal,
    offsets_topic,
    plan_creation,
    plan_deletion,
    plan_growth,
)
from minibroker.config import (
    BROKER_RACK,
    CLUSTER_ID,
    NODE_ID,
    OFFSETS_TOPIC_NUM_PARTITIONS,
    Settings,
)
from protocol.errors import ErrorCode
from protocol.types import uuid_text

PRODUCER_IDS_PER_BLOCK = 1000


class ControllerStartError(Exception):
    """The store and the settings do not belong together; the message says how to mend it."""


class TopicOutcome(NamedTuple):
    """What became of one topic of a request: the topic as it is now, or why nothing was done.

    A deleted topic is the one that was; ``config`` is what was set for a created one.
    """

    name: str
    refusal: Refusal | None
    topic: Topic | None = None
    config: Mapping[str, str] = EMPTY


class Outcome(NamedTuple):
    """What became of each topic, in the order of the request, and the updates to publish."""

    topics: tuple[TopicOutcome, ...]
    updates: list[Update]


class ConfigOutcome(NamedTuple):
    """Why each of several configs was not changed, None if it was, and the updates to publish."""

    refusals: tuple[Refusal | None, ...]
    updates: list[Update]


class ClusterController:
    """The cluster's facts with the store behind them; one at a time uses a store."""

    def __init__(self, store: Store, settings: Settings, image: Image, random: Random) -> None:
        """Wrap an image that the store is known to hold; `start` is the way to get there."""
        self._store = store
        self._settings = settings
        self._random = random
        self._image = image
        self._lock = trio.Lock()

    @classmethod
    async def start(
        cls,
        store: Store,
        settings: Settings,
        *,
        endpoints: Mapping[str, tuple[str, int]],
        random: Random,
        wall_ms: int,
    ) -> ClusterController:
        """Take over a store, new or used, with a higher controller epoch and an image numbered 0.

        ``endpoints`` is what clients of each listener dial: name -> (host, port).  Raises
        `ControllerStartError` if the store belongs to another broker or cluster.
        """
        broker = Broker(settings[NODE_ID], settings[BROKER_RACK], endpoints)
        for path in layout.PERSISTENT_PATHS:
            await store.ensure(path)
        image = Image(
            controller_epoch=await _next_epoch(store),
            cluster_id=await _cluster_id(store, settings, random),
            controller_id=broker.broker_id,
        )
        image = apply(image, BrokerChanged(broker))
        found: list[Change] = [*await _load_topics(store), *await _load_configs(store)]
        for change in found:
            image = apply(image, change)
        _check_fit(image, settings)
        protocols = {name: settings.security_protocol(name) for name in endpoints}
        await _register(store, broker, protocols, wall_ms)
        controller = cls(store, settings, image, random)
        if OFFSETS_TOPIC not in image.topics:
            # It is part of the image from the start, so that a group's first step needs no change
            # of the image; its logs come to be when they are first written.
            made = offsets_topic(settings, broker.broker_id, controller._new_topic_id())
            await store.multi(await controller._creation(made))
            controller._image = apply(controller._image, made)
        return controller

    @property
    def image(self) -> Image:
        """The newest image, which contains all that was ever returned for broadcast."""
        return self._image

    async def create_topics(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Outcome:
        """Create topics, each for itself; with ``validate_only`` say what would become of them."""
        async with self._lock:
            repeated = _repeated(new.name for new in wanted)
            image, changes, outcomes = self._image, list[TopicCreated](), []
            for new in wanted:
                if new.name in repeated:
                    outcomes.append(_refused_repetition(new.name))
                    continue
                plan = plan_creation(image, self._settings, new, self._new_topic_id())
                if isinstance(plan, Refusal):
                    outcomes.append(TopicOutcome(new.name, plan))
                    continue
                outcomes.append(TopicOutcome(new.name, None, plan.topic, plan.config))
                changes.append(plan)
                image = apply(image, plan)  # so that later topics see it
            if validate_only:
                return Outcome(tuple(outcomes), [])
            operations = [step for made in changes for step in await self._creation(made)]
            return Outcome(tuple(outcomes), await self._commit(operations, changes))

    async def delete_topics(self, names: Sequence[str]) -> Outcome:
        """Delete topics, each for itself; ids are the caller's to look up in the image."""
        async with self._lock:
            repeated = _repeated(names)
            changes, outcomes = list[TopicDeleted](), []
            for name in names:
                if name in repeated:
                    outcomes.append(_refused_repetition(name))
                    continue
                plan = plan_deletion(self._image, name)
                if isinstance(plan, Refusal):
                    outcomes.append(TopicOutcome(name, plan))
                    continue
                outcomes.append(TopicOutcome(name, None, plan))
                changes.append(TopicDeleted(plan.name, plan.topic_id))
            operations = [step for gone in changes for step in await self._deletion(gone.name)]
            return Outcome(tuple(outcomes), await self._commit(operations, changes))

    async def create_partitions(
        self, wanted: Sequence[Growth], *, validate_only: bool = False
    ) -> Outcome:
        """Add partitions to topics, each for itself."""
        async with self._lock:
            repeated = _repeated(growth.name for growth in wanted)
            changes, outcomes, operations = list[PartitionsAdded](), [], list[Operation]()
            for growth in wanted:
                if growth.name in repeated:
                    outcomes.append(_refused_repetition(growth.name))
                    continue
                plan = plan_growth(self._image, growth)
                if isinstance(plan, Refusal):
                    outcomes.append(TopicOutcome(growth.name, plan))
                    continue
                topic = self._image.topics[growth.name]
                grown = topic._replace(partitions=topic.partitions + plan)
                outcomes.append(TopicOutcome(growth.name, None, grown))
                changes.append(PartitionsAdded(growth.name, plan))
                operations.append(Set(layout.topic_path(grown.name), layout.encode_topic(grown)))
            if validate_only:
                return Outcome(tuple(outcomes), [])
            return Outcome(tuple(outcomes), await self._commit(operations, changes))

    async def alter_configs(
        self,
        wanted: Sequence[Alteration],
        *,
        unresolvable: Collection[str] = (),
        validate_only: bool = False,
    ) -> ConfigOutcome:
        """Change what is set for topics and brokers, each for itself (see `plan_alteration`)."""
        async with self._lock:
            image, settings = self._image, self._settings
            plans = [plan_alteration(image, settings, one, unresolvable) for one in wanted]
            return await self._keep_configs(plans, validate_only)

    async def alter_quotas(
        self,
        wanted: Sequence[QuotaChange],
        *,
        unresolvable: Collection[str] = (),
        validate_only: bool = False,
    ) -> ConfigOutcome:
        """Change the quotas of entities, each for itself (see `plan_change`)."""
        async with self._lock:
            repeated = {
                entity for entity, n in Counter(one.entity for one in wanted).items() if n > 1
            }
            plans: list[ConfigChanged | Refusal] = []
            for one in wanted:
                if one.entity in repeated:
                    plans.append(Refusal(ErrorCode.INVALID_REQUEST, "Ignoring duplicate entity"))
                else:
                    plans.append(plan_change(self._image, one, unresolvable))
            return await self._keep_configs(plans, validate_only)

    async def take_over(self, kind: str, name: str) -> list[Update]:
        """Look again at what the store holds for a resource, which others may have written."""
        if kind not in KINDS:
            return []
        async with self._lock:
            return self._advance(await self._differences([(kind, name)]))

    async def take_over_all(self) -> list[Update]:
        """The same for every resource."""
        async with self._lock:
            kept = [
                (kind, name)
                for kind in KINDS
                for name in await stored_configs.names(self._store, kind)
            ]
            return self._advance(await self._differences([*kept, *self._image.configs]))

    async def allocate_producer_ids(self) -> layout.ProducerIdBlock:
        """A block of producer ids that nobody ever got and nobody else will get."""
        async with self._lock:
            broker_id = self._settings[NODE_ID]
            try:
                found = await self._store.get(layout.PRODUCER_IDS)
            except NoNodeError:
                block = layout.ProducerIdBlock(0, PRODUCER_IDS_PER_BLOCK)
                data = layout.encode_producer_ids(broker_id, block)
                await self._store.create(layout.PRODUCER_IDS, data)
            else:
                first = layout.decode_producer_ids(found.data)
                block = layout.ProducerIdBlock(first, PRODUCER_IDS_PER_BLOCK)
                data = layout.encode_producer_ids(broker_id, block)
                await self._store.set(layout.PRODUCER_IDS, data, version=found.version)
            return block

    async def reset(self) -> list[Update]:
        """Drop every topic; the internal ones are there again at once, empty and with new ids.

        Producer ids go on, so that a producer from before cannot be taken for a new one.
        """
        async with self._lock:
            internal, operations = list[Topic](), list[Operation]()
            for topic in self._image.topics.values():
                if not topic.internal:
                    operations += await self._deletion(topic.name)
                    continue
                fresh = topic._replace(topic_id=self._new_topic_id())
                internal.append(fresh)
                operations.append(Set(layout.topic_path(fresh.name), layout.encode_topic(fresh)))
            return await self._commit(operations, [Reset(tuple(internal))])

    async def _commit(
        self, operations: Sequence[Operation], changes: Sequence[Change]
    ) -> list[Update]:
        """Keep changes in the store, then in the image; no change makes no update."""
        if not changes:
            return []
        await self._store.multi(operations)
        return self._advance(changes)

    def _advance(self, changes: Sequence[Change]) -> list[Update]:
        if not changes:
            return []
        image = self._image
        update = Update(image.controller_epoch, image.number + 1, tuple(changes))
        self._image = apply_update(image, update)
        return [update]

    async def _keep_configs(
        self, plans: Sequence[ConfigChanged | Refusal], validate_only: bool
    ) -> ConfigOutcome:
        refusals = tuple(plan if isinstance(plan, Refusal) else None for plan in plans)
        changes = [plan for plan in plans if isinstance(plan, ConfigChanged)]
        if validate_only:
            return ConfigOutcome(refusals, [])
        operations = await stored_configs.told_steps(self._store, changes)
        return ConfigOutcome(refusals, await self._commit(operations, changes))

    async def _differences(self, resources: Iterable[tuple[str, str]]) -> list[ConfigChanged]:
        found = []
        for kind, name in dict.fromkeys(resources):
            if kind == TOPIC and name not in self._image.topics:
                continue
            config = await stored_configs.load(self._store, kind, name)
            if config != self._image.configs.get((kind, name), EMPTY):
                found.append(ConfigChanged(kind, name, config))
        return found

    async def _creation(self, made: TopicCreated) -> list[Operation]:
        topic, config = made
        create = Create(layout.topic_path(topic.name), layout.encode_topic(topic))
        return [create, *await stored_configs.steps(self._store, TOPIC, topic.name, config)]

    async def _deletion(self, name: str) -> list[Operation]:
        return [
            Delete(layout.topic_path(name)),
            *await stored_configs.steps(self._store, TOPIC, name, EMPTY),
        ]

    def _new_topic_id(self) -> Uuid:
        return new_uuid(self._random)


def new_uuid(random: Random) -> Uuid:
    """A random UUID (version 4) that Kafka would give: none whose text begins with a hyphen,
    which command lines take for an option.
    """
    while True:
        raw = bytearray(random.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        made = bytes(raw)
        if not uuid_text(made).startswith("-"):
            return made


def _repeated(names: Iterable[str]) -> set[str]:
    return {name for name, times in Counter(names).items() if times > 1}


def _refused_repetition(name: str) -> TopicOutcome:
    return TopicOutcome(name, Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))


async def _next_epoch(store: Store) -> int:
    try:
        found = await store.get(layout.CONTROLLER_EPOCH)
    except NoNodeError:
        await store.create(layout.CONTROLLER_EPOCH, b"1")
        return 1
    epoch = layout.decode_epoch(found.data) + 1
    await store.set(layout.CONTROLLER_EPOCH, str(epoch).encode(), version=found.version)
    return epoch


async def _cluster_id(store: Store, settings: Settings, random: Random) -> str:
    wanted = settings[CLUSTER_ID]
    try:
        found = await store.get(layout.CLUSTER_ID)
    except NoNodeError:
        made = wanted or uuid_text(new_uuid(random))
        await store.create(layout.CLUSTER_ID, layout.encode_cluster_id(made))
        return made
    kept = layout.decode_cluster_id(found.data)
    if wanted not in (None, kept):
        raise ControllerStartError(
            f"cluster.id={wanted} ({settings.where(CLUSTER_ID)}): the config store belongs to "
            f"cluster {kept}; use that id or another data directory"
        )
    return kept


async def _load_topics(store: Store) -> list[TopicCreated]:
    found = []
    for name in await store.children(layout.TOPICS):
        data = (await store.get(layout.topic_path(name))).data
        topic = layout.decode_topic(name, data, internal=name in INTERNAL_TOPICS)
        found.append(TopicCreated(topic, await stored_configs.load(store, TOPIC, name)))
    return found


async def _load_configs(store: Store) -> list[ConfigChanged]:
    """What is set for all that are not topics."""
    return [
        ConfigChanged(kind, name, await stored_configs.load(store, kind, name))
        for kind in KINDS
        if kind != TOPIC
        for name in await stored_configs.names(store, kind)
    ]


def _check_fit(image: Image, settings: Settings) -> None:
    """Refuse settings under which the topics in the store could not be found again."""
    for topic in image.topics.values():
        strangers = {p.leader for p in topic.partitions} - set(image.brokers)
        if strangers:
            raise ControllerStartError(
                f"node.id={settings[NODE_ID]} ({settings.where(NODE_ID)}): the data directory "
                f"belongs to node {min(strangers)}; set node.id={min(strangers)} or use another "
                "data directory"
            )
    offsets, wanted = image.topics.get(OFFSETS_TOPIC), settings[OFFSETS_TOPIC_NUM_PARTITIONS]
    if offsets is not None and len(offsets.partitions) != wanted:
        raise ControllerStartError(
            f"offsets.topic.num.partitions={wanted} "
            f"({settings.where(OFFSETS_TOPIC_NUM_PARTITIONS)}): the data directory has "
            f"{len(offsets.partitions)}, by which groups find their offsets; set that number or "
            "use another data directory"
        )


async def _register(
    store: Store, broker: Broker, protocols: Mapping[str, str], wall_ms: int
) -> None:
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

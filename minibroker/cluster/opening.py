"""What a controller finds in a store when it opens it, and what it makes there.

Owns the checks that a store and the settings belong together, with the words for each that do not;
it must never change what others keep in a store but for ids that are missing.  The invariant: an
image that was opened leaves out no topic of which records are kept.  Echoes
``KafkaController.onControllerFailover``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from minibroker.cluster import layout, stored_acls, stored_configs, stored_topics
from minibroker.cluster.configs import KINDS
from minibroker.cluster.foreign_topics import take_over
from minibroker.cluster.image import (
    TOPIC,
    Broker,
    Change,
    ConfigChanged,
    Image,
    Uuid,
    apply,
)
from minibroker.cluster.placement import OFFSETS_TOPIC
from minibroker.cluster.store.tree import Create, NodeExistsError, NoNodeError, Store
from minibroker.cluster.topics import INTERNAL_TOPICS
from minibroker.config import (
    AUTHORIZER_CLASS_NAME,
    CLUSTER_ID,
    NODE_ID,
    OFFSETS_TOPIC_NUM_PARTITIONS,
    Settings,
)
from protocol.types import uuid_text

HasRecords = Callable[[str], bool]
"""Whether the data directory has records of a topic."""


class ControllerStartError(Exception):
    """The store and the settings do not belong together; the message says how to mend it."""


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


async def with_topics(image: Image, store: Store, random: Random, has_records: HasRecords) -> Image:
    """The image with the topics that the store has, whoever made them.

    Those that cannot be taken over are left out, unless that would cost their records.
    """
    for name in await store.children(layout.TOPICS):
        seen = await stored_topics.sight(store, name)
        taken = take_over(image, image.controller_id, name, seen, lambda: new_uuid(random))
        if taken.problem and (name in INTERNAL_TOPICS or has_records(name)):
            raise ControllerStartError(
                f"{taken.problem}; but the data directory has records of it, which would be "
                "removed: mend the node, or delete it to have them removed"
            )
        if taken.rewritten is not None:
            await store.multi([stored_topics.rewriting(taken.rewritten, seen)])
        for change in taken.changes:
            image = apply(image, change)
    return image


async def next_epoch(store: Store) -> int:
    """The controller epoch of this life, higher than all before."""
    try:
        found = await store.get(layout.CONTROLLER_EPOCH)
    except NoNodeError:
        await store.create(layout.CONTROLLER_EPOCH, b"1")
        return 1
    epoch = layout.decode_epoch(found.data) + 1
    await store.set(layout.CONTROLLER_EPOCH, str(epoch).encode(), version=found.version)
    return epoch


async def cluster_id(store: Store, settings: Settings, random: Random) -> str:
    """The id of the cluster whose store this is, made if it is a new one."""
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


async def load_configs(store: Store, settings: Settings) -> list[Change]:
    """What is set for all that are not topics, and the access rules if they are in force."""
    found: list[Change] = []
    if settings[AUTHORIZER_CLASS_NAME]:
        try:
            found += [change async for change in stored_acls.load_all(store)]
        except layout.LayoutError as error:
            raise ControllerStartError(f"{error}; mend the node or delete it") from None
    return found + [
        ConfigChanged(kind, name, await stored_configs.load(store, kind, name))
        for kind in KINDS
        if kind != TOPIC
        for name in await stored_configs.names(store, kind)
    ]


def check_fit(image: Image, settings: Settings) -> None:
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


async def register(
    store: Store, broker: Broker, protocols: Mapping[str, str], wall_ms: int
) -> None:
    """Tell who else looks that this broker is there and leads."""
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

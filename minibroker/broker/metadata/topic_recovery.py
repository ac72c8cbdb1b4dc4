"""Topics rebuilt from the logs of a data directory whose config store was lost.

Owns which topics follow from the partitions found on disk. It must never read a file or decide
whether to recover. Invariant: a rebuilt topic has the id that its partitions carry, so their logs
are opened and not renamed. What only the store knew stays lost: configs, quotas, users and ACLs.
Kafka has no equivalent; its metadata is replicated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from minibroker.broker.log.data_directory import LoggedTopic
from minibroker.broker.metadata import layout
from minibroker.broker.metadata.image import EMPTY, PartitionRegistration, Topic, TopicCreated
from minibroker.broker.metadata.layout import ProducerIdBlock, make_partition
from minibroker.broker.metadata.placement import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker.broker.metadata.store.tree import Create, Store
from minibroker.broker.metadata.stored_topics import creation
from minibroker.broker.metadata.topics import PARTITIONS_MAX, internal_topics, name_problem
from minibroker.broker.settings import (
    OFFSETS_TOPIC_NUM_PARTITIONS,
    TRANSACTION_STATE_LOG_NUM_PARTITIONS,
    Settings,
)

_logger = logging.getLogger(__name__)

_NUMBERS_SHOWN_MAX: Final = 10


class FoundLogs(NamedTuple):
    """Content of the data directory.

    ``cluster_id`` is read from its mark, None without one. ``rebuild_topics``: the user requested
    to rebuild the topics of a lost store.
    """

    cluster_id: str | None = None
    topics: Mapping[str, LoggedTopic] = {}
    rebuild_topics: bool = False


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
    make = internal_topics(settings).get(name)
    config = EMPTY if make is None else make(settings, broker_id, logged.topic_id).config
    partitions = tuple[PartitionRegistration, ...](
        make_partition(index, (broker_id,)) for index in range(count)
    )
    return TopicCreated(Topic(name, logged.topic_id, partitions), config)


def _log(message: str, **fields: object) -> None:
    _logger.warning("%s", message, extra={"fields": fields})

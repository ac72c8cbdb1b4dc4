"""Opening a store in which others have made topics."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from random import Random

import pytest

from minibroker.broker.log.data_directory import LoggedTopic
from minibroker.broker.metadata import bootstrap, layout
from minibroker.broker.metadata.bootstrap import ControllerStartError, FoundLogs
from minibroker.broker.metadata.image import (
    Broker,
    BrokerChanged,
    Image,
    PartitionRegistration,
    Topic,
    TopicCreated,
    apply,
)
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import Store
from minibroker.broker.settings import Settings

IMAGE = apply(Image(controller_id=1), BrokerChanged(Broker(1, None, {"P": ("h", 1)})))


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = SqliteStore(MEMORY)
    for path in layout.PERSISTENT_PATHS:
        await made.ensure(path)
    yield made
    await made.close()


async def opened(store: Store, *with_records: str) -> Image:
    return await bootstrap.with_topics(IMAGE, store, Random(1), with_records)


async def test_topic_without_id_gets_a_stored_id(store: Store) -> None:
    await store.create("/brokers/topics/t", b'{"version":2,"partitions":{"0":[1],"1":[1]}}')
    image = await opened(store)
    assert len(image.topics["t"].partitions) == 2
    again = await bootstrap.with_topics(IMAGE, store, Random(2))
    assert again.topics == image.topics


async def test_invalid_topic_node_is_skipped_at_startup(store: Store) -> None:
    await store.create("/brokers/topics/bad", b"{")
    await store.create("/brokers/topics/elsewhere", b'{"partitions":{"0":[5]}}')
    await store.create("/brokers/topics/good", b'{"partitions":{"0":[1]}}')
    assert list((await opened(store)).topics) == ["good"]


@pytest.mark.parametrize("name", ["bad", "__consumer_offsets"])
async def test_records_are_not_lost_over_a_bad_node(store: Store, name: str) -> None:
    await store.create(f"/brokers/topics/{name}", b"{")
    text = f"/brokers/topics/{name}: is not JSON.*repair the node, or delete it"
    with pytest.raises(ControllerStartError, match=text):
        await opened(store, "bad")


LOGGED = {"orders": LoggedTopic(b"\x01" * 16, (0,)), "users": LoggedTopic(b"\x02" * 16, (0,))}
WITH_ZOOKEEPER = Settings.from_sources(pairs=["zookeeper.connect=localhost:2181"])


@pytest.mark.parametrize(
    ("settings", "found_logs"),
    [
        (WITH_ZOOKEEPER, FoundLogs(None, LOGGED)),
        (WITH_ZOOKEEPER, FoundLogs("cluster", {})),
        (Settings.from_sources(), FoundLogs(None, LOGGED)),
    ],
)
def test_unmarked_directory_with_a_known_topic_fits(
    settings: Settings, found_logs: FoundLogs
) -> None:
    topic = Topic("users", b"\x02" * 16, (PartitionRegistration(0, 1, 0, (1,), (1,)),))
    bootstrap.check_data_directory(apply(IMAGE, TopicCreated(topic, {})), settings, found_logs)


def test_unmarked_log_dir_with_unknown_topics_is_rejected() -> None:
    text = "has partitions of 2 topics, and cluster c has none of them"
    with pytest.raises(ControllerStartError, match=text):
        bootstrap.check_data_directory(
            dataclasses.replace(IMAGE, cluster_id="c"), WITH_ZOOKEEPER, FoundLogs(None, LOGGED)
        )

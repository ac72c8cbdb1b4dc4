"""Opening a store in which others have made topics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest

from minibroker.cluster import layout, opening
from minibroker.cluster.image import Broker, BrokerChanged, Image, apply
from minibroker.cluster.opening import ControllerStartError
from minibroker.cluster.store.sqlite import MEMORY, SqliteStore
from minibroker.cluster.store.tree import Store

IMAGE = apply(Image(controller_id=1), BrokerChanged(Broker(1, None, {"P": ("h", 1)})))


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = SqliteStore(MEMORY)
    for path in layout.PERSISTENT_PATHS:
        await made.ensure(path)
    yield made
    await made.close()


async def opened(store: Store, *with_records: str) -> Image:
    return await opening.with_topics(IMAGE, store, Random(1), with_records)


async def test_a_topic_without_an_id_gets_one_that_it_keeps(store: Store) -> None:
    await store.create("/brokers/topics/t", b'{"version":2,"partitions":{"0":[1],"1":[1]}}')
    image = await opened(store)
    assert len(image.topics["t"].partitions) == 2
    again = await opening.with_topics(IMAGE, store, Random(2))
    assert again.topics == image.topics


async def test_a_node_that_is_no_topic_stops_nobody(store: Store) -> None:
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

"""Topics that others make, change and delete in the store while a controller looks on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.cluster.configs import Alteration, Op
from minibroker.cluster.configs import ConfigOperation as ConfigStep
from minibroker.cluster.controller import ClusterController
from minibroker.cluster.image import Image, Update, apply_update
from minibroker.cluster.layout import decode_topic
from minibroker.cluster.store.sqlite import MEMORY, SqliteStore
from minibroker.cluster.store.tree import (
    Create,
    Delete,
    NotEmptyError,
    Operation,
    Result,
    Set,
)
from minibroker.cluster.topics import NewPartitions, NewTopic
from minibroker.config import Settings
from minibroker.controller import topic_changes
from minibroker.controller.topic_changes import TopicChanges
from protocol.errors import ErrorCode

OFFSETS = "__consumer_offsets"


class SharedStore(SqliteStore):
    """A store in which others are sometimes faster."""

    def __init__(self) -> None:
        super().__init__(MEMORY)
        self.before: list[Any] = []
        """What other programs do before each of the next transactions."""

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        if self.before:
            await self.before.pop(0)()
        return await super().multi(operations)


class Desk:
    """A controller, a subscriber, and programs that write to its store."""

    def __init__(self, store: SharedStore, cluster: ClusterController) -> None:
        self.store = store
        self.cluster = cluster
        self.image: Image = cluster.image
        self.changes = TopicChanges(store, cluster, self.publish)

    async def publish(self, updates: Sequence[Update]) -> None:
        for update in updates:
            self.image = apply_update(self.image, update)

    async def put(self, name: str, partitions: int, topic_id: str | None = None) -> None:
        """As a tool would, without waiting for what follows."""
        fields: dict[str, Any] = {"version": 2, "partitions": {n: [1] for n in range(partitions)}}
        if topic_id is not None:
            fields["topic_id"] = topic_id
        path, data = f"/brokers/topics/{name}", json.dumps(fields).encode()
        if await self.store.exists(path):
            await SqliteStore.multi(self.store, [Set(path, data)])
        else:
            await SqliteStore.multi(self.store, [Create(path, data)])

    def partitions(self, name: str) -> int | None:
        topic = self.image.topics.get(name)
        return None if topic is None else len(topic.partitions)


async def made_desk(*pairs: str) -> Desk:
    store = SharedStore()
    cluster = await ClusterController.start(
        store,
        Settings.from_sources(pairs=pairs),
        endpoints={"PLAINTEXT": ("h", 1)},
        random=Random(1),
        wall_ms=0,
    )
    return Desk(store, cluster)


@pytest.fixture
async def desk(nursery: trio.Nursery) -> AsyncIterator[Desk]:
    made = await made_desk()
    nursery.start_soon(made.changes.run)
    await wait_all_tasks_blocked()
    yield made
    assert made.image == made.cluster.image
    await made.store.close()


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["fields"]["why"] for record in caplog.records]


async def test_topics_are_created_grown_and_deleted(desk: Desk) -> None:
    await desk.store.create("/config/topics/t", b'{"version":1,"config":{"retention.ms":"5"}}')
    await desk.put("t", 1)
    await wait_all_tasks_blocked()
    assert desk.partitions("t") == 1
    assert desk.image.topic_overrides("t") == {"retention.ms": "5"}
    topic_id = desk.image.topics["t"].topic_id
    node = await desk.store.get("/brokers/topics/t")
    assert decode_topic("t", node.data).topic_id == topic_id
    await desk.put("t", 3)
    await wait_all_tasks_blocked()
    assert desk.partitions("t") == 3
    assert desk.image.topics["t"].topic_id == topic_id
    await desk.store.delete("/brokers/topics/t")
    await wait_all_tasks_blocked()
    assert desk.partitions("t") is None
    assert desk.image.topic_overrides("t") == {}


@pytest.mark.parametrize("at_once", [1, 50])
async def test_topic_changes_stored_before_start_are_applied(
    at_once: int, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_changes, "BATCH_MAX", at_once)
    desk = await made_desk()
    await desk.publish((await desk.cluster.create_topics([NewTopic("gone", 1)])).updates)
    await desk.store.delete("/brokers/topics/gone")
    await desk.put("made", 2)
    nursery.start_soon(desk.changes.run)
    await wait_all_tasks_blocked()
    assert (desk.partitions("gone"), desk.partitions("made")) == (None, 2)
    await desk.store.close()


async def test_recreated_topic_has_new_topic_id(desk: Desk) -> None:
    await desk.put("t", 1)
    await wait_all_tasks_blocked()
    before = desk.image.topics["t"].topic_id
    await desk.store.delete("/brokers/topics/t")
    await desk.put("t", 2)
    await wait_all_tasks_blocked()
    assert desk.partitions("t") == 2
    assert desk.image.topics["t"].topic_id != before


async def test_request_to_delete_is_carried_out_and_removed(desk: Desk) -> None:
    await desk.publish((await desk.cluster.create_topics([NewTopic("t", 2)])).updates)
    for path in ("partitions", "partitions/0", "partitions/0/state"):
        await desk.store.create(f"/brokers/topics/t/{path}")  # as a Kafka broker leaves them
    await desk.store.create("/admin/delete_topics/t")
    await desk.store.create("/admin/delete_topics/nobody-knows-it")
    await wait_all_tasks_blocked()
    assert desk.partitions("t") is None
    assert await desk.store.children("/brokers/topics") == [OFFSETS]
    assert await desk.store.children("/admin/delete_topics") == []


async def test_requests_before_the_watch_are_applied(nursery: trio.Nursery) -> None:
    desk = await made_desk()
    await desk.publish((await desk.cluster.create_topics([NewTopic("t", 2)])).updates)
    await desk.store.create("/admin/delete_topics/t")
    nursery.start_soon(desk.changes.run)
    await wait_all_tasks_blocked()
    assert desk.partitions("t") is None
    await desk.store.close()


async def test_disabled_topic_deletion_rejects_delete_requests(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    desk = await made_desk("delete.topic.enable=false")
    nursery.start_soon(desk.changes.run)
    await desk.put("t", 1)
    await wait_all_tasks_blocked()
    await desk.store.create("/admin/delete_topics/t")
    await wait_all_tasks_blocked()
    assert desk.partitions("t") == 1
    assert await desk.store.children("/admin/delete_topics") == []
    assert complaints(caplog) == [
        "/admin/delete_topics/t: is ignored, because delete.topic.enable=false"
    ]
    await desk.store.close()


async def test_internal_topics_cannot_be_deleted_changed_or_spoilt(desk: Desk) -> None:
    node = await desk.store.get(f"/brokers/topics/{OFFSETS}")
    await desk.store.create(f"/admin/delete_topics/{OFFSETS}")
    await wait_all_tasks_blocked()
    assert await desk.store.children("/admin/delete_topics") == []
    await desk.put(OFFSETS, 3)
    await wait_all_tasks_blocked()
    assert (await desk.store.get(f"/brokers/topics/{OFFSETS}")).data == node.data
    await desk.store.delete(f"/brokers/topics/{OFFSETS}")
    await wait_all_tasks_blocked()
    assert (await desk.store.get(f"/brokers/topics/{OFFSETS}")).data == node.data
    assert desk.image.number == 0


async def test_invalid_topic_node_is_logged_once_and_applied_if_fixed(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("bad name", "bad"):
        await desk.store.create(f"/brokers/topics/{path}", b"{")
    await desk.put("good", 1)
    await wait_all_tasks_blocked()
    await desk.store.create("/brokers/topics/bad/partitions")
    await desk.store.set("/brokers/topics/bad", b"{")
    await wait_all_tasks_blocked()
    first, second = complaints(caplog)
    assert first.startswith("/brokers/topics/bad name: is not a topic")
    assert second.startswith("/brokers/topics/bad: is not JSON")
    assert desk.partitions("good") == 1
    await desk.put("bad", 2)
    await wait_all_tasks_blocked()
    assert desk.partitions("bad") == 2


async def test_partition_leaders_are_written_to_store(nursery: trio.Nursery) -> None:
    desk = await made_desk("offsets.topic.num.partitions=2")
    desk.changes = TopicChanges(desk.store, desk.cluster, desk.publish, writes_leaders=True)
    nursery.start_soon(desk.changes.run)
    await wait_all_tasks_blocked()
    assert await desk.store.children(f"/brokers/topics/{OFFSETS}/partitions") == ["0", "1"]
    await desk.publish((await desk.cluster.create_topics([NewTopic("ours", 1)])).updates)
    await desk.put("theirs", 1)
    await wait_all_tasks_blocked()
    await desk.put("theirs", 3)
    await wait_all_tasks_blocked()
    for path in ("ours/partitions/0", "theirs/partitions/2"):
        node = await desk.store.get(f"/brokers/topics/{path}/state")
        assert json.loads(node.data) == {
            "controller_epoch": 1,
            "leader": 1,
            "leader_epoch": 0,
            "isr": [1],
            "version": 1,
        }
    await desk.publish((await desk.cluster.delete_topics(["ours", "theirs"])).updates)
    await wait_all_tasks_blocked()
    assert await desk.store.children("/brokers/topics") == [OFFSETS]
    await desk.store.close()


async def test_own_topics_are_not_reported_as_foreign(desk: Desk) -> None:
    outcome = await desk.cluster.create_topics([NewTopic("a"), NewTopic("b")])
    await desk.publish(outcome.updates)
    await desk.publish((await desk.cluster.create_partitions([NewPartitions("a", 4)])).updates)
    await desk.publish((await desk.cluster.delete_topics(["b"])).updates)
    await desk.publish((await desk.cluster.create_topics([NewTopic("b")])).updates)
    made = desk.image.topics["b"].topic_id
    await wait_all_tasks_blocked()
    assert desk.image.number == 4
    assert desk.image.topics["b"].topic_id == made
    await desk.publish(await desk.cluster.reset())
    await wait_all_tasks_blocked()
    assert desk.image.number == 5
    assert list(desk.image.topics) == [OFFSETS]


async def test_creating_foreign_topic_reports_topic_already_exists(desk: Desk) -> None:
    desk.store.before = [lambda: desk.put("t", 3)]
    outcome = await desk.cluster.create_topics([NewTopic("t", 1)])
    await desk.publish(outcome.updates)
    assert outcome.topics[0].rejection is not None
    assert outcome.topics[0].rejection.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert desk.partitions("t") == 3


async def test_delete_and_growth_apply_foreign_changes_first(desk: Desk) -> None:
    for name in ("t", "u"):
        await desk.publish((await desk.cluster.create_topics([NewTopic(name, 1)])).updates)
    desk.store.before = [lambda: desk.put("t", 3)]
    outcome = await desk.cluster.create_partitions([NewPartitions("t", 2)])
    await desk.publish(outcome.updates)
    assert outcome.topics[0].rejection is not None
    assert outcome.topics[0].rejection.code == ErrorCode.INVALID_PARTITIONS
    assert desk.partitions("t") == 3
    desk.store.before = [lambda: SqliteStore.multi(desk.store, [Delete("/brokers/topics/u")])]
    outcome = await desk.cluster.delete_topics(["u", "t"])
    await desk.publish(outcome.updates)
    assert [one.rejection and one.rejection.code for one in outcome.topics] == [3, None]
    assert list(desk.image.topics) == [OFFSETS]


async def test_concurrent_foreign_configs_are_merged(desk: Desk) -> None:
    await desk.publish((await desk.cluster.create_topics([NewTopic("t", 1)])).updates)
    theirs = b'{"version":1,"config":{"retention.ms":"5"}}'
    await desk.store.create("/config/topics/t", theirs)
    step = Alteration("topics", "t", (ConfigStep("segment.bytes", Op.SET, "1000"),))
    await desk.publish((await desk.cluster.alter_configs([step])).updates)
    both = {"retention.ms": "5", "segment.bytes": "1000"}
    assert desk.image.topic_overrides("t") == both

    async def remove() -> None:
        await SqliteStore.multi(desk.store, [Delete("/config/topics/t")])

    desk.store.before = [remove]
    step = Alteration("topics", "t", (ConfigStep("segment.bytes", Op.SET, "2000"),))
    await desk.publish((await desk.cluster.alter_configs([step])).updates)
    assert desk.image.topic_overrides("t") == {"segment.bytes": "2000"}
    kept = json.loads((await desk.store.get("/config/topics/t")).data)["config"]
    assert kept == {"segment.bytes": "2000"}


async def test_delete_failed_by_store_changes_succeeds_on_retry(desk: Desk) -> None:
    rounds = 0

    async def meddle() -> None:
        nonlocal rounds
        rounds += 1
        await SqliteStore.multi(desk.store, [Create(f"/brokers/topics/t/{rounds}")])

    await desk.publish((await desk.cluster.create_topics([NewTopic("t", 1)])).updates)
    desk.store.before = [meddle] * 20
    with pytest.raises(NotEmptyError):
        await desk.cluster.delete_topics(["t"])
    desk.store.before = []
    await desk.publish((await desk.cluster.delete_topics(["t"])).updates)
    assert desk.partitions("t") is None

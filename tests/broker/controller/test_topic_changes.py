"""Topics that other programs create, change and delete in the store of a running controller."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.controller import topic_changes
from minibroker.broker.controller.topic_changes import TopicChanges
from minibroker.broker.metadata.configs import Alteration, Op
from minibroker.broker.metadata.configs import ConfigOperation as ConfigStep
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import Image, Update, apply_update
from minibroker.broker.metadata.layout import decode_topic
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import (
    Create,
    Delete,
    NotEmptyError,
    Operation,
    Result,
    Set,
)
from minibroker.broker.metadata.topics import NewPartitions, NewTopic
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode

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


class ControllerWithStore:
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


async def new_controller(*pairs: str) -> ControllerWithStore:
    store = SharedStore()
    cluster = await ClusterController.start(
        store,
        Settings.from_sources(pairs=pairs),
        endpoints={"PLAINTEXT": ("h", 1)},
        random=Random(1),
        wall_ms=0,
    )
    return ControllerWithStore(store, cluster)


@pytest.fixture
async def controller(nursery: trio.Nursery) -> AsyncIterator[ControllerWithStore]:
    made = await new_controller()
    nursery.start_soon(made.changes.run)
    await wait_all_tasks_blocked()
    yield made
    assert made.image == made.cluster.image
    await made.store.close()


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["fields"]["reason"] for record in caplog.records]


async def test_topics_are_created_grown_and_deleted(controller: ControllerWithStore) -> None:
    await controller.store.create(
        "/config/topics/t", b'{"version":1,"config":{"retention.ms":"5"}}'
    )
    await controller.put("t", 1)
    await wait_all_tasks_blocked()
    assert controller.partitions("t") == 1
    assert controller.image.topic_overrides("t") == {"retention.ms": "5"}
    topic_id = controller.image.topics["t"].topic_id
    node = await controller.store.get("/brokers/topics/t")
    assert decode_topic("t", node.data).topic_id == topic_id
    await controller.put("t", 3)
    await wait_all_tasks_blocked()
    assert controller.partitions("t") == 3
    assert controller.image.topics["t"].topic_id == topic_id
    await controller.store.delete("/brokers/topics/t")
    await wait_all_tasks_blocked()
    assert controller.partitions("t") is None
    assert controller.image.topic_overrides("t") == {}


@pytest.mark.parametrize("at_once", [1, 50])
async def test_topic_changes_stored_before_start_are_applied(
    at_once: int, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_changes, "BATCH_MAX", at_once)
    controller = await new_controller()
    await controller.publish(
        (await controller.cluster.create_topics([NewTopic("gone", 1)])).updates
    )
    await controller.store.delete("/brokers/topics/gone")
    await controller.put("made", 2)
    nursery.start_soon(controller.changes.run)
    await wait_all_tasks_blocked()
    assert (controller.partitions("gone"), controller.partitions("made")) == (None, 2)
    await controller.store.close()


async def test_recreated_topic_has_new_topic_id(controller: ControllerWithStore) -> None:
    await controller.put("t", 1)
    await wait_all_tasks_blocked()
    before = controller.image.topics["t"].topic_id
    await controller.store.delete("/brokers/topics/t")
    await controller.put("t", 2)
    await wait_all_tasks_blocked()
    assert controller.partitions("t") == 2
    assert controller.image.topics["t"].topic_id != before


async def test_request_to_delete_is_carried_out_and_removed(
    controller: ControllerWithStore,
) -> None:
    await controller.publish((await controller.cluster.create_topics([NewTopic("t", 2)])).updates)
    for path in ("partitions", "partitions/0", "partitions/0/state"):
        await controller.store.create(f"/brokers/topics/t/{path}")  # as a Kafka broker leaves them
    await controller.store.create("/admin/delete_topics/t")
    await controller.store.create("/admin/delete_topics/nobody-knows-it")
    await wait_all_tasks_blocked()
    assert controller.partitions("t") is None
    assert await controller.store.children("/brokers/topics") == [OFFSETS]
    assert await controller.store.children("/admin/delete_topics") == []


async def test_requests_before_the_watch_are_applied(nursery: trio.Nursery) -> None:
    controller = await new_controller()
    await controller.publish((await controller.cluster.create_topics([NewTopic("t", 2)])).updates)
    await controller.store.create("/admin/delete_topics/t")
    nursery.start_soon(controller.changes.run)
    await wait_all_tasks_blocked()
    assert controller.partitions("t") is None
    await controller.store.close()


async def test_disabled_topic_deletion_rejects_delete_requests(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    controller = await new_controller("delete.topic.enable=false")
    nursery.start_soon(controller.changes.run)
    await controller.put("t", 1)
    await wait_all_tasks_blocked()
    await controller.store.create("/admin/delete_topics/t")
    await wait_all_tasks_blocked()
    assert controller.partitions("t") == 1
    assert await controller.store.children("/admin/delete_topics") == []
    assert complaints(caplog) == [
        "/admin/delete_topics/t: is ignored, because delete.topic.enable=false"
    ]
    await controller.store.close()


async def test_internal_topics_cannot_be_deleted_or_changed(
    controller: ControllerWithStore,
) -> None:
    node = await controller.store.get(f"/brokers/topics/{OFFSETS}")
    await controller.store.create(f"/admin/delete_topics/{OFFSETS}")
    await wait_all_tasks_blocked()
    assert await controller.store.children("/admin/delete_topics") == []
    await controller.put(OFFSETS, 3)
    await wait_all_tasks_blocked()
    assert (await controller.store.get(f"/brokers/topics/{OFFSETS}")).data == node.data
    await controller.store.delete(f"/brokers/topics/{OFFSETS}")
    await wait_all_tasks_blocked()
    assert (await controller.store.get(f"/brokers/topics/{OFFSETS}")).data == node.data
    assert controller.image.number == 0


async def test_invalid_topic_node_is_logged_once_and_applied_if_fixed(
    controller: ControllerWithStore, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("bad name", "bad"):
        await controller.store.create(f"/brokers/topics/{path}", b"{")
    await controller.put("good", 1)
    await wait_all_tasks_blocked()
    await controller.store.create("/brokers/topics/bad/partitions")
    await controller.store.set("/brokers/topics/bad", b"{")
    await wait_all_tasks_blocked()
    first, second = complaints(caplog)
    assert first.startswith("/brokers/topics/bad name: is not a topic")
    assert second.startswith("/brokers/topics/bad: is not JSON")
    assert controller.partitions("good") == 1
    await controller.put("bad", 2)
    await wait_all_tasks_blocked()
    assert controller.partitions("bad") == 2


async def test_partition_leaders_are_written_to_store(nursery: trio.Nursery) -> None:
    controller = await new_controller("offsets.topic.num.partitions=2")
    controller.changes = TopicChanges(
        controller.store, controller.cluster, controller.publish, writes_leaders=True
    )
    nursery.start_soon(controller.changes.run)
    await wait_all_tasks_blocked()
    assert await controller.store.children(f"/brokers/topics/{OFFSETS}/partitions") == ["0", "1"]
    await controller.publish(
        (await controller.cluster.create_topics([NewTopic("ours", 1)])).updates
    )
    await controller.put("theirs", 1)
    await wait_all_tasks_blocked()
    await controller.put("theirs", 3)
    await wait_all_tasks_blocked()
    for path in ("ours/partitions/0", "theirs/partitions/2"):
        node = await controller.store.get(f"/brokers/topics/{path}/state")
        assert json.loads(node.data) == {
            "controller_epoch": 1,
            "leader": 1,
            "leader_epoch": 0,
            "isr": [1],
            "version": 1,
        }
    await controller.publish((await controller.cluster.delete_topics(["ours", "theirs"])).updates)
    await wait_all_tasks_blocked()
    assert await controller.store.children("/brokers/topics") == [OFFSETS]
    await controller.store.close()


async def test_own_topics_are_not_reported_as_foreign(controller: ControllerWithStore) -> None:
    outcome = await controller.cluster.create_topics([NewTopic("a"), NewTopic("b")])
    await controller.publish(outcome.updates)
    await controller.publish(
        (await controller.cluster.create_partitions([NewPartitions("a", 4)])).updates
    )
    await controller.publish((await controller.cluster.delete_topics(["b"])).updates)
    await controller.publish((await controller.cluster.create_topics([NewTopic("b")])).updates)
    made = controller.image.topics["b"].topic_id
    await wait_all_tasks_blocked()
    assert controller.image.number == 4
    assert controller.image.topics["b"].topic_id == made
    await controller.publish(await controller.cluster.reset())
    await wait_all_tasks_blocked()
    assert controller.image.number == 5
    assert list(controller.image.topics) == [OFFSETS]


async def test_creating_foreign_topic_reports_topic_already_exists(
    controller: ControllerWithStore,
) -> None:
    controller.store.before = [lambda: controller.put("t", 3)]
    outcome = await controller.cluster.create_topics([NewTopic("t", 1)])
    await controller.publish(outcome.updates)
    assert outcome.topics[0].rejection is not None
    assert outcome.topics[0].rejection.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert controller.partitions("t") == 3


async def test_delete_and_growth_apply_foreign_changes_first(
    controller: ControllerWithStore,
) -> None:
    for name in ("t", "u"):
        await controller.publish(
            (await controller.cluster.create_topics([NewTopic(name, 1)])).updates
        )
    controller.store.before = [lambda: controller.put("t", 3)]
    outcome = await controller.cluster.create_partitions([NewPartitions("t", 2)])
    await controller.publish(outcome.updates)
    assert outcome.topics[0].rejection is not None
    assert outcome.topics[0].rejection.code == ErrorCode.INVALID_PARTITIONS
    assert controller.partitions("t") == 3
    controller.store.before = [
        lambda: SqliteStore.multi(controller.store, [Delete("/brokers/topics/u")])
    ]
    outcome = await controller.cluster.delete_topics(["u", "t"])
    await controller.publish(outcome.updates)
    assert [one.rejection and one.rejection.code for one in outcome.topics] == [3, None]
    assert list(controller.image.topics) == [OFFSETS]


async def test_concurrent_foreign_configs_are_merged(controller: ControllerWithStore) -> None:
    await controller.publish((await controller.cluster.create_topics([NewTopic("t", 1)])).updates)
    theirs = b'{"version":1,"config":{"retention.ms":"5"}}'
    await controller.store.create("/config/topics/t", theirs)
    step = Alteration("topics", "t", (ConfigStep("segment.bytes", Op.SET, "1000"),))
    await controller.publish((await controller.cluster.alter_configs([step])).updates)
    both = {"retention.ms": "5", "segment.bytes": "1000"}
    assert controller.image.topic_overrides("t") == both

    async def remove() -> None:
        await SqliteStore.multi(controller.store, [Delete("/config/topics/t")])

    controller.store.before = [remove]
    step = Alteration("topics", "t", (ConfigStep("segment.bytes", Op.SET, "2000"),))
    await controller.publish((await controller.cluster.alter_configs([step])).updates)
    assert controller.image.topic_overrides("t") == {"segment.bytes": "2000"}
    kept = json.loads((await controller.store.get("/config/topics/t")).data)["config"]
    assert kept == {"segment.bytes": "2000"}


async def test_delete_failed_by_store_changes_succeeds_on_retry(
    controller: ControllerWithStore,
) -> None:
    rounds = 0

    async def meddle() -> None:
        nonlocal rounds
        rounds += 1
        await SqliteStore.multi(controller.store, [Create(f"/brokers/topics/t/{rounds}")])

    await controller.publish((await controller.cluster.create_topics([NewTopic("t", 1)])).updates)
    controller.store.before = [meddle] * 20
    with pytest.raises(NotEmptyError):
        await controller.cluster.delete_topics(["t"])
    controller.store.before = []
    await controller.publish((await controller.cluster.delete_topics(["t"])).updates)
    assert controller.partitions("t") is None

"""Updates reach all processes, in order, before they are reported as published."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.metadata import layout
from minibroker.broker.metadata.configs import Alteration, Op
from minibroker.broker.metadata.configs import ConfigOperation as ConfigStep
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import Broker, BrokerGone, Image, Update, apply_update
from minibroker.broker.metadata.layout import decode_topic
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import (
    Create,
    Delete,
    EventsLostError,
    NotEmptyError,
    Operation,
    Result,
    Set,
    StoreError,
    StoreEvent,
    StoreNode,
    UnavailableError,
)
from minibroker.broker.metadata.topics import NewPartitions, NewTopic
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.messages import ImageApplied, RegisterRole, RoleRegistered
from minibroker.broker.roles import metadata_publisher as topic_changes
from minibroker.broker.roles.metadata_publisher import (
    PAUSE_S,
    MetadataPublisher,
    Publisher,
    TopicChanges,
    follow,
    watch_leadership,
)
from minibroker.runtime.rpc import PeerLost, RpcConnection, memory_channel_pair
from minibroker_protocol.errors import ErrorCode
from tests.broker.roles.followed_store import FollowedStore, start_cluster


class Role:
    """One life of a role that greets, and takes updates over when the test lets it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.image = Image()
        self.numbers: list[int] = []
        self.gate = trio.Event()
        self.gate.set()
        self.breaks = False
        here, self.there = memory_channel_pair()
        self.rpc = RpcConnection(here, self.answer)

    async def answer(self, request: Any) -> Any:
        if isinstance(request, Update):
            await self.gate.wait()
            if self.breaks:
                raise ZeroDivisionError
            self.numbers.append(request.number)
            return None
        return (self.name, request)

    async def register(self, *, takes: bool = True) -> RoleRegistered:
        role, _, number = self.name.partition("-")
        welcome: RoleRegistered = await self.rpc.request(RegisterRole(role, int(number or 0), 1))
        if takes:
            await self.take()
        return welcome

    async def take(self) -> None:
        await self.rpc.request(ImageApplied())


class Controller:
    """Subscribers with an image, and roles that dial them."""

    def __init__(self, nursery: trio.Nursery, *expected: str) -> None:
        self.nursery = nursery
        self.image = Image(controller_epoch=1)
        self.subscribers = MetadataPublisher(lambda: self.image, self.answer, 0, expected)
        self.done: list[int] = []
        nursery.start_soon(self.subscribers.run)

    def answer(self, request: Any) -> Any:
        return ("controller", request)

    def dial(self, name: str) -> Role:
        role = Role(name)
        self.nursery.start_soon(self.subscribers.serve_role, role.there)
        self.nursery.start_soon(role.rpc.run)
        return role

    async def role(self, name: str) -> Role:
        role = self.dial(name)
        await role.register()
        return role

    async def change(self, count: int = 1) -> None:
        """Publish ``count`` updates together; ``done`` gets the last number."""
        updates = []
        for _ in range(count):
            update = Update(1, self.image.number + 1, (BrokerGone(9),))
            self.image = apply_update(self.image, update)
            updates.append(update)
        number = self.image.number

        async def publish() -> None:
            await self.subscribers.publish(updates)
            self.done.append(number)

        self.nursery.start_soon(publish)
        await wait_all_tasks_blocked()


@pytest.fixture
async def nursery_of_test() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as made:
        yield made
        made.cancel_scope.cancel()


@pytest.fixture
def connected(nursery_of_test: trio.Nursery) -> Controller:
    return Controller(nursery_of_test)


async def test_change_completes_when_all_subscribers_applied_it(connected: Controller) -> None:
    first, second = await connected.role("worker-0"), await connected.role("processor-1")
    assert connected.subscribers.names() == ["processor-1", "worker-0"]
    second.gate = trio.Event()
    await connected.change()
    assert (first.numbers, second.numbers, connected.done) == ([1], [], [])
    assert connected.subscribers.complete == 0
    second.gate.set()
    await wait_all_tasks_blocked()
    assert (second.numbers, connected.done) == ([1], [1])
    assert connected.subscribers.complete == 1


async def test_updates_are_received_one_at_a_time_in_order(connected: Controller) -> None:
    slow, quick = await connected.role("worker-0"), await connected.role("worker-1")
    slow.gate = trio.Event()
    await connected.change(2)
    await connected.change()
    assert quick.numbers == [1]
    slow.gate.set()
    await wait_all_tasks_blocked()
    assert slow.numbers == quick.numbers == [1, 2, 3]
    assert connected.done == [2, 3]


async def test_change_without_subscribers_completes_immediately(connected: Controller) -> None:
    await connected.subscribers.publish([])
    await connected.change()
    assert connected.done == [1]


async def test_lost_subscriber_does_not_block_change(connected: Controller) -> None:
    dying, other = await connected.role("worker-0"), await connected.role("worker-1")
    dying.gate = other.gate = trio.Event()
    await connected.change()
    dying.rpc.close()
    await wait_all_tasks_blocked()
    assert connected.subscribers.names() == ["worker-1"]
    assert connected.done == []
    other.gate.set()
    await wait_all_tasks_blocked()
    assert connected.done == [1]


async def test_late_subscriber_gets_newest_image_and_later_updates(
    connected: Controller,
) -> None:
    slow = await connected.role("worker-0")
    slow.gate = trio.Event()
    await connected.change()
    await connected.change()
    late = connected.dial("worker-1")
    assert (await late.register()).image.number == 2
    slow.gate.set()
    await wait_all_tasks_blocked()
    await connected.change()
    assert late.numbers[-1] == 3
    assert connected.done == [1, 2, 3]


async def test_new_incarnation_replaces_the_previous_one(connected: Controller) -> None:
    previous = await connected.role("worker-0")
    previous.gate = trio.Event()
    await connected.change()
    reborn = await connected.role("worker-0")
    await wait_all_tasks_blocked()
    assert connected.done == [1]
    await connected.change()
    assert reborn.numbers == [2]
    assert connected.subscribers.names() == ["worker-0"]
    with pytest.raises(PeerLost):
        await previous.rpc.request("anything")


async def test_subscriber_failing_an_update_must_rejoin(connected: Controller) -> None:
    breaking = await connected.role("worker-0")
    breaking.breaks = True
    await connected.change()
    # It lives on, with an image that can't be known.
    assert connected.done == []
    with pytest.raises(PeerLost):
        await breaking.rpc.request("anything")
    assert (await connected.dial("worker-0").register()).image.number == 1
    await wait_all_tasks_blocked()
    assert connected.done == [1]


async def test_requests_wait_for_image_of_this_incarnation(
    nursery_of_test: trio.Nursery,
) -> None:
    connected = Controller(nursery_of_test, "worker-0", "worker-1")
    await connected.role("worker-0")
    await connected.change()
    assert connected.done == []
    late = connected.dial("worker-1")
    await late.register(takes=False)
    await wait_all_tasks_blocked()
    assert connected.done == []  # The update may not have arrived yet.
    await late.take()
    await wait_all_tasks_blocked()
    assert connected.done == [1]
    late.rpc.close()
    await wait_all_tasks_blocked()
    await connected.change()
    assert connected.done == [1, 2]  # Its next process serves nothing before it has an image.


async def test_request_to_subscribers_skips_lost_ones(connected: Controller) -> None:
    names = ["worker-1", "worker-0", "acceptor"]
    roles = {name: await connected.role(name) for name in names}
    answers = await connected.subscribers.request_all("hello")
    assert list(answers.items()) == [(name, (name, "hello")) for name in sorted(names)]
    some = await connected.subscribers.request_all("hello", ["worker-0", "worker-9"])
    assert list(some) == ["worker-0"]
    roles["worker-0"].rpc.close()
    await wait_all_tasks_blocked()
    assert sorted(await connected.subscribers.request_all("hello")) == ["acceptor", "worker-1"]
    with pytest.raises(PeerLost, match="worker-0 is not connected"):
        await connected.subscribers.request("worker-0", "hello")


async def test_roles_send_requests_to_each_other(connected: Controller) -> None:
    role = await connected.role("worker-0")
    assert await role.rpc.request("why?") == ("controller", "why?")


def update(number: int) -> Update:
    return Update(1, number, ())


def behind(publisher: Publisher) -> dict[str, int]:
    """Number of updates that each subscriber has not acknowledged yet."""
    return {name: publisher.newest - number for name, number in publisher.acknowledged.items()}


def test_update_completes_when_every_subscriber_acknowledged_it() -> None:
    publisher = Publisher()
    publisher.join("a")
    publisher.join("b")
    assert publisher.publish(update(1)) == ("a", "b")
    publisher.acknowledge("a", 1)
    assert publisher.complete == 0
    assert behind(publisher) == {"a": 0, "b": 1}
    publisher.acknowledge("b", 1)
    assert publisher.complete == 1


def test_update_without_subscribers_completes_immediately() -> None:
    publisher = Publisher(5)
    assert publisher.publish(update(6)) == ()
    assert publisher.complete == publisher.newest == 6


def test_departed_subscriber_does_not_block_completion() -> None:
    publisher = Publisher()
    publisher.join("a")
    publisher.join("b")
    publisher.publish(update(1))
    publisher.acknowledge("a", 1)
    publisher.leave("b")
    assert publisher.complete == 1
    publisher.acknowledge("b", 1)
    publisher.leave("b")
    assert behind(publisher) == {"a": 0}


def test_joining_subscriber_is_not_behind() -> None:
    publisher = Publisher()
    publisher.join("a")
    publisher.publish(update(1))
    publisher.join("b")
    assert behind(publisher) == {"a": 1, "b": 0}
    publisher.join("a")
    assert publisher.complete == 1


def test_older_acknowledgement_is_ignored() -> None:
    publisher = Publisher()
    publisher.join("a")
    publisher.publish(update(1))
    publisher.publish(update(2))
    publisher.acknowledge("a", 2)
    publisher.acknowledge("a", 1)
    assert publisher.complete == 2


def test_updates_are_acknowledged_in_order() -> None:
    publisher = Publisher()
    publisher.join("a")
    with pytest.raises(ValueError, match="update 2 cannot follow update 0"):
        publisher.publish(update(2))
    with pytest.raises(ValueError, match="a acknowledged 1, the newest is 0"):
        publisher.acknowledge("a", 1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "publish", "acknowledge"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 20),
    ),
    max_size=60,
)


@given(STEPS)
def test_complete_number_is_monotonic_lower_bound(steps: list[tuple[str, str, int]]) -> None:
    publisher = Publisher()
    complete = 0
    for step, name, number in steps:
        if step == "join":
            publisher.join(name)
        elif step == "leave":
            publisher.leave(name)
        elif step == "publish":
            publisher.publish(update(publisher.newest + 1))
        else:
            publisher.acknowledge(name, min(number, publisher.newest))
        assert complete <= publisher.complete <= publisher.newest
        complete = publisher.complete
        assert all(publisher.newest - lag >= complete for lag in behind(publisher).values())


class Follower:
    """Notes its calls; pauses until the test continues it."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.go_on = trio.Event()

    async def begin(self) -> None:
        self.noted.append("begin")

    async def heard(self, event: StoreEvent) -> None:
        self.noted.append(f"{event.kind.value} {event.path}")

    async def pause(self, seconds: float) -> None:
        assert seconds == PAUSE_S
        self.noted.append("pause")
        await self.go_on.wait()

    async def run(self, store: SqliteStore) -> None:
        await follow(store, "/a", self.begin, self.heard, pause=self.pause, log=EventLog("test"))


async def test_store_watch_reads_first_then_follows_until_store_ends(nursery: trio.Nursery) -> None:
    store, follower = SqliteStore(MEMORY), Follower()
    async with trio.open_nursery() as lives:
        lives.start_soon(follower.run, store)
        await wait_all_tasks_blocked()
        await store.create("/a")
        await store.create("/b")
        await wait_all_tasks_blocked()
        await store.close()
    assert follower.noted == ["begin", "created /a"]


@pytest.mark.parametrize("is_lost", [True, False])
async def test_watch_restarts_immediately_or_after_backoff(
    is_lost: bool, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, follower = SqliteStore(MEMORY), Follower()
    watch = store.watch

    @contextmanager
    def broken(path: str) -> Iterator[Any]:
        monkeypatch.setattr(store, "watch", watch)
        with watch(path) as events:
            events.end(EventsLostError("away") if is_lost else UnavailableError(path, "away"))  # type: ignore[attr-defined]
            yield events

    monkeypatch.setattr(store, "watch", broken)
    nursery.start_soon(follower.run, store)
    await wait_all_tasks_blocked()
    if not is_lost:
        assert follower.noted == ["begin", "pause"]
        follower.go_on.set()
        await wait_all_tasks_blocked()
    await store.create("/a")
    await wait_all_tasks_blocked()
    assert [note for note in follower.noted if note != "pause"] == ["begin", "begin", "created /a"]
    await store.close()


async def test_repeated_warning_is_logged_once(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    store, tries = SqliteStore(MEMORY), 0
    wrong = iter(["away"] * 3 + ["worse"] * 2)

    async def begin() -> None:
        nonlocal tries
        tries += 1
        for text in wrong:
            raise UnavailableError("/a", text)

    async def heard(event: StoreEvent) -> None:
        del event

    async def pause(seconds: float) -> None:
        del seconds
        await trio.lowlevel.checkpoint()

    async def run() -> None:
        await follow(store, "/a", begin, heard, pause=pause, log=EventLog("test"))

    nursery.start_soon(run)
    await wait_all_tasks_blocked()
    assert tries == 6
    assert len(caplog.records) == 2
    await store.close()


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


class ControllerWithStore(FollowedStore[SharedStore]):
    """A controller, a subscriber, and programs that write to its store."""

    def __init__(self, store: SharedStore, cluster: ClusterController) -> None:
        super().__init__(store, cluster)
        self.changes = TopicChanges(store, cluster, self.publish)

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
    return ControllerWithStore(store, await start_cluster(store, *pairs))


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
    await controller.store.create("/admin/delete_topics/unknown-topic")
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


MINE = layout.broker_path(1)


class FlakyStore(SqliteStore):
    """A store that can be away."""

    away = False

    async def get(self, path: str) -> StoreNode:
        if self.away:
            raise UnavailableError(path, "away")
        return await super().get(path)

    def return_from_away(self) -> None:
        self.away = False
        self._watches.end(EventsLostError("was away"))


def registration(timestamp_ms: int, *, port: int = 1) -> bytes:
    broker = Broker(1, None, {"PLAINTEXT": ("h", port)})
    return layout.encode_broker(broker, {"PLAINTEXT": "PLAINTEXT"}, timestamp_ms)


@pytest.fixture
async def store() -> AsyncIterator[FlakyStore]:
    made = FlakyStore(MEMORY)
    await made.ensure(layout.BROKERS)
    for path in (layout.CONTROLLER, MINE):
        await made.create(path, registration(1), ephemeral=True)
    yield made
    await made.close()


class Holder:
    """A controller that holds its office until ``reason`` says why not."""

    def __init__(self, store: FlakyStore, nursery: trio.Nursery) -> None:
        self.reason: str | None = None
        self.ended = trio.Event()
        nursery.start_soon(self._hold, store)

    async def _hold(self, store: FlakyStore) -> None:
        self.reason = await watch_leadership(store, 1)
        self.ended.set()


@pytest.mark.parametrize("path", [layout.CONTROLLER, MINE])
async def test_controller_resigns_after_node_deletion(
    store: FlakyStore, nursery: trio.Nursery, path: str
) -> None:
    holder = Holder(store, nursery)
    await wait_all_tasks_blocked()
    await store.delete(path)
    await holder.ended.wait()
    assert holder.reason == f"{path} was deleted"


async def test_controller_resigns_if_replaced_during_store_outage(
    store: FlakyStore, nursery: trio.Nursery
) -> None:
    holder = Holder(store, nursery)
    await wait_all_tasks_blocked()
    store.away = True
    await store.set(layout.CONTROLLER, b"another")
    await wait_all_tasks_blocked()
    assert holder.reason is None
    store.return_from_away()
    await holder.ended.wait()
    assert holder.reason == "/controller belongs to another broker now: b'another'"


async def test_controller_resigns_if_a_broker_with_its_id_registers(
    store: FlakyStore, nursery: trio.Nursery
) -> None:
    holder = Holder(store, nursery)
    await wait_all_tasks_blocked()
    await store.set(MINE, registration(2))
    await holder.ended.wait()
    assert holder.reason == f"{MINE} belongs to another broker now: {registration(2)!r}"


async def test_controller_resigns_if_its_node_is_unreadable_from_the_start(
    store: FlakyStore,
) -> None:
    await store.set(layout.CONTROLLER, b"another")
    assert (await watch_leadership(store, 1)).startswith("/controller: is not JSON")


async def test_store_that_has_failed_ends_the_office(
    store: FlakyStore, nursery: trio.Nursery
) -> None:
    holder = Holder(store, nursery)
    await wait_all_tasks_blocked()
    store._watches.end(StoreError(MINE, "taken"))
    await holder.ended.wait()
    assert holder.reason == f"{MINE}: taken"


async def test_unrelated_node_changes_keep_controller(
    store: FlakyStore, nursery: trio.Nursery
) -> None:
    holder = Holder(store, nursery)
    await wait_all_tasks_blocked()
    await store.set(MINE, registration(1, port=2))
    await wait_all_tasks_blocked()
    store.away = True
    await store.set(MINE, registration(1))
    await wait_all_tasks_blocked()
    store.return_from_away()
    await wait_all_tasks_blocked()
    await store.create(layout.broker_path(2), b"another")
    await wait_all_tasks_blocked()
    assert holder.reason is None
    store._watches.end()  # as closing does
    await holder.ended.wait()
    assert holder.reason == ""

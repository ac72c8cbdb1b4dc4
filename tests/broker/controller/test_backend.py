"""The backend of the control API, with roles played by the test."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.admission.connection_events import ConnectionEvents, RecentConnectionEvents
from minibroker.broker.admission.connection_figures import ConnectionFigures
from minibroker.broker.apis.base import Mutations, Mutator
from minibroker.broker.controller.backend import ControllerBackend
from minibroker.broker.controller.fault_store import FaultStore
from minibroker.broker.controller.faults import FaultController
from minibroker.broker.controller.journal import JournalController
from minibroker.broker.controller.metadata_publisher import MetadataPublisher
from minibroker.broker.groups.description import (
    GroupDescription,
    GroupOverview,
    MemberDescription,
    OffsetDescription,
)
from minibroker.broker.metadata.configs import Alteration, ConfigOperation, Op
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import BROKER, Image, Update
from minibroker.broker.metadata.quotas import EffectiveQuotas, QuotaChange
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import UnavailableError
from minibroker.broker.metrics.conditions import Condition, ConditionKind
from minibroker.broker.metrics.metrics import ProcessMetrics
from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.network.reports import AcceptorReport, ProcessorReport
from minibroker.broker.process.environment import CONTROLLER, Environment
from minibroker.broker.process.messages import (
    ClockAdvanced,
    ConditionsRequest,
    DetailsRequest,
    GroupsRequest,
    ImageApplied,
    LogsRequest,
    LogView,
    MetricsRequest,
    RegisterRole,
)
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.manager import ClientQuotaManager
from minibroker.broker.settings import Settings
from minibroker.broker.settings.dynamic import Configs
from minibroker.broker.telemetry.instances import ClientInstances
from minibroker.lab.control import backend as shown
from minibroker.lab.control.backend import BackendError, Conflict, NotFound, Unavailable
from minibroker.lab.control.quota_shapes import QuotaQuery
from minibroker.runtime.channel import memory_channel_pair
from minibroker.runtime.roles import RoleState, RoleStatus
from minibroker.runtime.rpc import RpcConnection
from minibroker.runtime.stream import memory_stream_pair
from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    TopicPartition,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID
from tests.broker.process.conftest import MakeEnvironment

WORKERS = 2
ENDPOINTS = {"PLAINTEXT": ("127.0.0.1", 9092), "OTHER": ("127.0.0.1", 9093)}
NOTHING = RecentConnectionEvents(1, 0, (), 0, ())
DOOR = ConnectionFigures(0, 0.0, (), (), 0)
STATUSES = (
    RoleStatus("controller", 40, 1, RoleState.READY, 0, None),
    RoleStatus("worker-0", 0, 2, RoleState.WAITING, 1, "signal 9 (SIGKILL)"),
)


T = TypeVar("T")


class Scope:
    """The controller's part: facts, and the recipients of changes."""

    def __init__(self, settings: Settings, cluster: ClusterController) -> None:
        self.settings = settings
        self.cluster = cluster
        self.directory_id = ZERO_UUID
        self.telemetry = ClientInstances(1000)
        self.ledger = QuotaLedger(11, 1000, shared=False)
        self.in_force = EffectiveQuotas(settings, self.ledger)

        def answer(request: Any) -> Any:
            raise AssertionError(f"nobody should ask {request}")

        self.subscribers = MetadataPublisher(lambda: cluster.image, answer, cluster.image.number)

    @property
    def image(self) -> Image:
        return self.cluster.image

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work)

    @property
    def quotas(self) -> ClientQuotaManager:
        self.in_force.follow(self.image)
        return self.in_force.quotas

    def mutations(self, mutator: Mutator) -> Mutations:
        raise AssertionError(f"{mutator} is not asked for: who may use this API may do all")

    def unusable_keys(self, configs: Configs) -> Sequence[str]:
        raise AssertionError(f"{configs} are not looked at: nobody alters them so")

    async def publish(self, updates: Sequence[Update]) -> None:
        await self.subscribers.publish(updates)


class Roles:
    """Roles that answer each type of request as the test determines."""

    def __init__(self, nursery: trio.Nursery, subscribers: MetadataPublisher) -> None:
        self._nursery = nursery
        self._subscribers = subscribers
        self.answers: dict[tuple[str, type], Any] = {}
        self.asked: list[tuple[str, Any]] = []
        self.conversations: dict[str, RpcConnection] = {}

    async def join(self, name: str) -> None:
        here, there = memory_channel_pair()

        def answer(request: Any) -> Any:
            self.asked.append((name, request))
            return self.answers.get((name, type(request)))

        rpc = self.conversations[name] = RpcConnection(here, answer)
        self._nursery.start_soon(rpc.run)
        self._nursery.start_soon(self._subscribers.serve_role, there)
        role, _, number = name.partition("-")
        await rpc.request(RegisterRole(role, int(number or 0), 1))
        await rpc.request(ImageApplied())


class At:
    """Everything a test looks at."""

    def __init__(self, env: Environment, scope: Scope, roles: Roles) -> None:
        self.env = replace(env, ledger=scope.ledger)
        self.scope = scope
        self.roles = roles
        self.journal = JournalController(
            self.env, scope.subscribers, lambda *_: None, 1 << 20, on_switch=lambda _: None
        )
        store = FaultStore(env.data_dir, 1)
        no_notes: dict[str, Any] = dict.fromkeys(("on_clock", "on_process", "hand_over"), print)
        self.backend = ControllerBackend(
            self.env,
            scope,
            scope.subscribers,
            partial(FaultController, scope.subscribers, env.clock, (), tuple, store, **no_notes),
            lambda: self.journal,
            started_at=self.env.clock.now(),
        )

    async def configure(self, config: dict[str, str]) -> None:
        """Set configs of all brokers."""
        steps = tuple(ConfigOperation(name, Op.SET, value) for name, value in config.items())
        outcome = await self.scope.cluster.alter_configs([Alteration(BROKER, "", steps)])
        await self.scope.publish(outcome.updates)


@pytest.fixture
async def at(make_env: MakeEnvironment, autojump_clock: MockClock) -> AsyncIterator[At]:
    settings = Settings.from_sources(pairs=["node.id=3"])
    store = SqliteStore(MEMORY)
    cluster = await ClusterController.start(
        store, settings, endpoints=ENDPOINTS, random=Random(1), wall_ms=0
    )
    env = make_env(
        CONTROLLER,
        settings=settings,
        workers=WORKERS,
        endpoints=ENDPOINTS,
        statuses=lambda: STATUSES,
    )
    scope = Scope(settings, cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scope.subscribers.run)
        roles = Roles(nursery, scope.subscribers)
        for name in ("worker-0", "worker-1", "processor-0", "acceptor"):
            await roles.join(name)
            roles.answers[name, MetricsRequest] = ProcessMetrics(name).snapshot()
            roles.answers[name, LogsRequest] = {}
            roles.answers[name, ConditionsRequest] = ()
            roles.answers[name, GroupsRequest] = []
        roles.answers["acceptor", DetailsRequest] = AcceptorReport((4,), DOOR, NOTHING)
        roles.answers["processor-0", DetailsRequest] = ProcessorReport((), 0, NOTHING)
        yield At(env, scope, roles)
        nursery.cancel_scope.cancel()
    await store.close()


async def test_health_is_that_of_the_processes(at: At, autojump_clock: MockClock) -> None:
    await trio.sleep(2)
    health = await at.backend.health()
    assert not health.ready
    assert health.processes == (
        shown.ProcessHealth("controller", 40, "running", 0),
        shown.ProcessHealth("worker-0", None, "restarting", 1),
    )
    recorder = STATUSES[1]._replace(name="recorder")
    for statuses in (STATUSES[:1], (STATUSES[0], recorder)):  # not needed by clients
        at.env.statuses = partial(tuple, statuses)
        assert (await at.backend.health()).ready


async def test_health_with_a_condition_is_degraded_and_names_it(at: At) -> None:
    at.env.statuses = partial(tuple, STATUSES[:1])
    assert (await at.backend.health()).status == "ready"
    full = Condition(ConditionKind.STORAGE_FAILED, "/data", "0 bytes are free", 7)
    at.roles.answers["worker-0", ConditionsRequest] = (full,)
    health = await at.backend.health()
    assert (health.ready, health.status) == (True, "degraded")
    assert health.conditions == (
        shown.HealthCondition("worker-0", "storage_failed", "/data", "0 bytes are free", 7),
    )


async def test_health_names_a_process_that_does_not_answer(at: At) -> None:
    async def never() -> None:
        await trio.sleep_forever()

    at.roles.answers["worker-1", ConditionsRequest] = never()
    (condition,) = (await at.backend.health()).conditions
    assert (condition.process, condition.kind) == ("worker-1", "not_responding")


async def test_cluster_is_that_of_the_image(at: At) -> None:
    await at.backend.create_topic(shown.TopicCreation("t", 3, {}))
    cluster = await at.backend.cluster()
    assert (cluster.controller_id, cluster.change) == (3, 1)
    assert cluster.cluster_id == at.scope.image.cluster_id
    (broker,) = cluster.brokers
    assert [endpoint.port for endpoint in broker.endpoints] == [9092, 9093]
    assert (cluster.topics, cluster.partitions) == (2, 53)


async def test_topic_is_created_for_all_and_shown_with_its_logs(at: At) -> None:
    made = await at.backend.create_topic(shown.TopicCreation("t", 2, {"retention.ms": "5"}))
    assert made.configs == {"retention.ms": "5"}
    result = [name for name, request in at.roles.asked if isinstance(request, Update)]
    assert sorted(result) == ["acceptor", "processor-0", "worker-0", "worker-1"]
    owners = [partition.owner for partition in made.partitions]
    assert sorted(owners) == ["worker-0", "worker-1"]
    for index, owner in enumerate(owners):
        at.roles.answers[owner, LogsRequest] = {index: LogView(index, 7, 8, 100)}
    topic = await at.backend.topic("t")
    assert [(each.log_start_offset, each.log_end_offset) for each in topic.partitions] == [
        (0, 8),
        (1, 8),
    ]
    assert [topic.name for topic in (await at.backend.topics()).topics] == [
        "__consumer_offsets",
        "t",
    ]


async def test_worker_that_is_down_is_left_out(at: At) -> None:
    await at.backend.create_topic(shown.TopicCreation("t", 2, {}))
    at.roles.conversations["worker-0"].close()
    await wait_all_tasks_blocked()
    topic = await at.backend.topic("t")
    down = next(each for each in topic.partitions if each.owner == "worker-0")
    assert (down.log_end_offset, down.size_bytes) == (-1, 0)


async def test_invalid_topic_operation_is_rejected_with_error_name(at: At) -> None:
    new = shown.TopicCreation("t", None, {})
    assert len((await at.backend.create_topic(new)).partitions) == 1
    with pytest.raises(Conflict) as conflict:
        await at.backend.create_topic(new)
    assert conflict.value.code == "TOPIC_ALREADY_EXISTS"
    with pytest.raises(BackendError) as refused:
        await at.backend.create_topic(shown.TopicCreation("a/b", 1, {}))
    assert refused.value.code == "INVALID_TOPIC_EXCEPTION"
    for missing in (at.backend.topic("no"), at.backend.delete_topic("no")):
        with pytest.raises(NotFound) as unknown:
            await missing
        assert unknown.value.code == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_topic_that_the_store_cannot_write_is_unavailable(
    at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(SqliteStore, "_transaction", full)
    with pytest.raises(Unavailable) as refused:
        await at.backend.create_topic(shown.TopicCreation("t", 1, {}))
    assert (refused.value.code, refused.value.status) == ("KAFKA_STORAGE_ERROR", 503)
    assert "Free space" in refused.value.hint


async def test_deleted_topic_is_not_listed(at: At) -> None:
    await at.backend.create_topic(shown.TopicCreation("t", 1, {}))
    await at.backend.delete_topic("t")
    assert "t" not in {topic.name for topic in (await at.backend.topics()).topics}


def group(group_id: str = "g", **changes: Any) -> GroupDescription:
    base = GroupDescription(group_id, "Stable", 0, "consumer", "range", 4, "m", (), ())
    return base._replace(**changes)


def member(assignment: bytes) -> MemberDescription:
    return MemberDescription("m", None, "c", "/h", 1, 2, b"", assignment, ())


def assignment(version: int) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartition(topic="t", partitions=[0, 2])]
    )
    return version.to_bytes(2, "big") + encode(message, min(version, 3))


async def ask_for_group(at: At, described: GroupDescription | None) -> shown.GroupView:
    for worker in ("worker-0", "worker-1"):
        at.roles.answers[worker, GroupsRequest] = described
    return await at.backend.group("g")


@pytest.mark.parametrize(
    ("protocol_type", "data", "expected"),
    [
        ("consumer", assignment(1), (shown.AssignedTopic("t", (0, 2)),)),
        ("consumer", assignment(9), (shown.AssignedTopic("t", (0, 2)),)),
        ("consumer", b"", ()),
        ("consumer", b"\0\1\xff\xff", ()),
        ("connect", assignment(1), ()),
    ],
)
async def test_member_assignment_is_shown_only_if_readable(
    at: At, protocol_type: str, data: bytes, expected: tuple[shown.AssignedTopic, ...]
) -> None:
    described = group(protocol_type=protocol_type, members=(member(data),))
    found = await ask_for_group(at, described)
    assert (found.state, found.generation, found.leader) == ("Stable", 4, "m")
    assert found.members[0].assignment == expected


async def test_groups_lag_is_counted_to_the_end_of_the_log(at: At) -> None:
    await at.backend.create_topic(shown.TopicCreation("t", 1, {}))
    for worker in ("worker-0", "worker-1"):
        at.roles.answers[worker, LogsRequest] = {0: LogView(0, 10, 10, 100)}
    offsets = tuple(
        OffsetDescription(topic, partition, offset, -1, "", 0)
        for topic, partition, offset in (("t", 0, 7), ("t", 0, 12), ("gone", 0, 1))
    )
    found = await ask_for_group(at, group(offsets=offsets))
    assert [(each.log_end_offset, each.lag) for each in found.offsets] == [
        (10, 3),
        (10, 0),
        (None, None),
    ]


async def test_groups_that_are_not_there(at: At) -> None:
    with pytest.raises(NotFound, match="no group 'g'"):
        await ask_for_group(at, None)
    for worker in ("worker-0", "worker-1"):
        at.roles.conversations[worker].close()
    await wait_all_tasks_blocked()
    with pytest.raises(Unavailable) as unavailable:
        await at.backend.group("g")
    assert unavailable.value.code == "COORDINATOR_NOT_AVAILABLE"


async def test_groups_of_all_workers_are_listed_by_name(at: At) -> None:
    for worker, names in (("worker-0", ["z", "b"]), ("worker-1", ["a"])):
        at.roles.answers[worker, GroupsRequest] = [
            GroupOverview(name, "consumer", "Empty", 1, 0, 2, "classic") for name in names
        ]
    groups = (await at.backend.groups()).groups
    assert [each.group_id for each in groups] == ["a", "b", "z"]
    assert (await at.backend.reset()).groups == 3


async def test_connections_are_shown_from_processor_reports(
    at: At, autojump_clock: MockClock
) -> None:
    accepted = AcceptedConnection("PLAINTEXT", ("127.0.0.1", 9092), ("10.0.0.7", 51234), 7)
    client = ClientConnection(accepted, memory_stream_pair()[1], trio.current_time())
    client.in_flight = ApiKey.FETCH
    client.client_id = "me"
    happened = ConnectionEvents(1, trio.current_time)
    happened.reject(accepted, "process_died", processor=0)
    report = ProcessorReport((client.view(client.opened),), 1, happened.recent())
    at.roles.answers["processor-0", DetailsRequest] = report
    await trio.sleep(3)
    for _ in range(2):
        found = await at.backend.connections()
        (processor,) = found.processors
        assert processor.slots_used == 4
        (connection,) = processor.connections
        assert (connection.client_id, connection.age_ms, connection.in_flight) == (
            "me",
            3000,
            "Fetch",
        )
        assert [each.ago_ms for each in found.refusals] == [3000]
        assert [each.seq for each in found.happenings] == [1 << 32]


async def test_effective_limits_are_reported(at: At) -> None:
    assert (await at.backend.connections()).limit is None
    await at.configure({"max.connections": "5", "listener.name.other.max.connections": "2"})
    found = await at.backend.connections()
    assert (found.limit, [each.limit for each in found.listeners]) == (5, [5, 2])


async def test_without_acceptor_and_processor_there_is_little_to_show(at: At) -> None:
    for name in ("acceptor", "processor-0"):
        at.roles.conversations[name].close()
    await wait_all_tasks_blocked()
    found = await at.backend.connections()
    (processor,) = found.processors
    assert (processor.slots_used, processor.connections) == (0, ())
    assert [each.connections for each in found.listeners] == [0, 0]


async def test_clock_advance_is_sent_to_all_processes(at: At, autojump_clock: MockClock) -> None:
    before = await at.backend.clock()
    after = await at.backend.turn_clock(shown.ClockChange(advance_ms=5000))
    assert after.now - before.now == pytest.approx(5)
    woken = sorted(name for name, request in at.roles.asked if request == ClockAdvanced())
    assert woken == ["acceptor", "processor-0", "worker-0", "worker-1"]
    frozen = await at.backend.turn_clock(shown.ClockChange(freeze=True, rate=2.0))
    assert (frozen.frozen, frozen.rate) == (True, 2.0)
    await at.backend.turn_clock(shown.ClockChange(freeze=False))


@pytest.mark.parametrize("change", [{"advance_ms": -1}, {"rate": 0.0}])
async def test_invalid_clock_change_is_rejected(at: At, change: dict[str, Any]) -> None:
    with pytest.raises(BackendError) as refused:
        await at.backend.turn_clock(shown.ClockChange(**change))
    assert refused.value.code == "INVALID_CLOCK"


async def test_reset_deletes_user_topics(at: At) -> None:
    await at.backend.create_topic(shown.TopicCreation("t", 1, {}))
    done = await at.backend.reset()
    assert done == shown.ResetResult(1, 0)
    names = [topic.name for topic in (await at.backend.topics()).topics]
    assert names == ["__consumer_offsets"]


async def test_metrics_cover_every_running_process(at: At) -> None:
    snapshots = await at.backend.metrics()
    names = [snapshot.process for snapshot in snapshots]
    assert names == ["controller", "acceptor", "processor-0", "worker-0", "worker-1"]


async def test_unavailable_store_fails_topic_changes(at: At) -> None:
    store = at.scope.cluster._store

    async def away(_operations: object) -> list[Any]:
        raise UnavailableError("/brokers/topics/t", "no ZooKeeper answered")

    await at.backend.create_topic(shown.TopicCreation("t", 1, {}))
    store.multi = away  # type: ignore[assignment, method-assign]
    for change in (
        at.backend.create_topic(shown.TopicCreation("u", 1, {})),
        at.backend.delete_topic("t"),
        at.backend.reset(),
    ):
        with pytest.raises(Unavailable, match="no ZooKeeper answered"):
            await change


async def test_quotas_are_seen_and_explained(at: At, autojump_clock: MockClock) -> None:
    assert (await at.backend.quotas()).counting is False
    request = QuotaQuery(client_id="c", type="produce")
    assert "no quota was set" in (await at.backend.explain_quota(request)).sharing
    change = QuotaChange((("client-id", "c"),), (("producer_byte_rate", 1024.0),))
    outcome = await at.scope.cluster.alter_quotas([change])
    await at.scope.publish(outcome.updates)
    at.scope.quotas.produced(("ANONYMOUS", "c"), 20480, round(trio.current_time() * 1000))
    found = await at.backend.quotas()
    [use] = found.uses
    assert (use.type, use.user, use.client_id) == ("produce", "", "c")
    assert (use.rate, use.quota, use.share, use.path) == (2048, 1024, 2, "/config/clients/c")
    explained = await at.backend.explain_quota(request)
    assert (explained.throttle_ms, explained.window_ms) == (10_000, 10_000)
    assert explained.samples == ((0, 20480.0),)
    assert [level.path for level in explained.levels if level.holds] == ["/config/clients/c"]

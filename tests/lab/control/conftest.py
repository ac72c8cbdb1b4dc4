"""A broker that exists only as far as the control API can see."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cached_property, update_wrapper
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import trio

from minibroker.broker.metrics.metrics import ProcessMetrics
from minibroker.broker.process.messages import ClockAdvanced, MetricsRequest
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.manager import ClientQuotaManager
from minibroker.broker.quotas.types import CLIENT, Entity, QuotaTable, QuotaType
from minibroker.broker.settings import Settings
from minibroker.broker.telemetry import ClientInstances
from minibroker.lab.control.actions import ActionResult, BrokerAction, check_action
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.clock import ClockChange
from minibroker.lab.control.cluster import BrokerView, Cluster, Endpoint, ResetResult
from minibroker.lab.control.connections import (
    AddressView,
    Connection,
    ConnectionEventView,
    ConnectionsView,
    ListenerView,
    ProcessorView,
    RejectionView,
    UnservedClientView,
)
from minibroker.lab.control.groups import (
    AssignedTopic,
    CommittedOffsetView,
    GroupList,
    GroupQuery,
    GroupSummary,
    GroupView,
    Member,
)
from minibroker.lab.control.http import make_app
from minibroker.lab.control.journal_collector import JournalCollector, journal_of_one_process
from minibroker.lab.control.namespaces import NamespaceCreation, NamespaceList, NamespaceView
from minibroker.lab.control.operation import ApiOperation
from minibroker.lab.control.operations import OPERATIONS
from minibroker.lab.control.snapshots import SnapshotCreation, SnapshotList, SnapshotView
from minibroker.lab.control.topics import (
    PartitionView,
    TopicCreation,
    TopicList,
    TopicSummary,
    TopicView,
)
from minibroker.lab.errors import Conflict, NotFound
from minibroker.lab.faults.fault_rule import FaultRule, FaultView
from minibroker.lab.journal.records import note_record
from minibroker.lab.proxy.journal import JournaledProcess
from minibroker.runtime.clock import ClockState
from minibroker.runtime.roles import RoleState, RoleStatus
from tests.broker.process.conftest import make_env
from tests.lab.control.running_broker import at

__all__ = ["at", "make_env"]


class FakeRules:
    """Implements ``FaultRuleSet`` and its register over a dictionary of rules."""

    def __init__(self) -> None:
        self.rules: dict[str, FaultView] = {}
        self.waits: list[tuple[int, int]] = []

    @property
    def register(self) -> Any:
        return self

    def views(self) -> tuple[FaultView, ...]:
        return tuple(self.rules.values())

    def view(self, fault_id: str) -> FaultView:
        if fault_id not in self.rules:
            raise NotFound("NO_SUCH_FAULT", f"no rule {fault_id!r}")
        return self.rules[fault_id]

    async def add(self, rule: FaultRule) -> FaultView:
        fault_id = rule.name or str(len(self.rules) + 1)
        self.rules[fault_id] = view = FaultView(fault_id, rule.given, 2, 1, 1, (), 5)
        return view

    async def remove(self, fault_id: str) -> None:
        self.view(fault_id)
        del self.rules[fault_id]

    async def remove_all(self) -> None:
        self.rules.clear()

    def release(self, fault_id: str) -> int:
        return self.view(fault_id).held

    async def wait(self, fault_id: str, hits: int, timeout_ms: int) -> FaultView:
        self.waits.append((hits, timeout_ms))
        return self.view(fault_id)


class FakeClock:
    """A clock that notes how it is changed."""

    def __init__(self) -> None:
        self.change: dict[str, Any] = {}

    def now(self) -> float:
        return 5.0

    def wall_ms(self) -> int:
        return 7

    def state(self) -> ClockState:
        return ClockState(1.0, False, 0.0, 5.0, 7)

    def freeze(self, frozen: bool) -> None:
        self.change["freeze"] = frozen

    def set_rate(self, rate: float) -> None:
        self.change["rate"] = rate

    def advance(self, milliseconds: int) -> None:
        self.change["advance_ms"] = milliseconds


class FakeBroker(ControlledBroker):
    """A broker without processes, whose operations on topics and groups are those of this class."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.worker = ProcessMetrics("worker-0")
        ledger = QuotaLedger(11, 1000, shared=False)
        quotas = ClientQuotaManager(ledger)
        env = SimpleNamespace(
            name="controller",
            incarnation=1,
            processors=1,
            workers=1,
            settings=Settings.from_entries([]),
            clock=self.clock,
            ledger=ledger,
            on_note=None,
            metrics=ProcessMetrics("controller"),
            conditions=SimpleNamespace(all=tuple),
            statuses=self._statuses,
        )
        scope = SimpleNamespace(quotas=quotas, telemetry=ClientInstances(1000))
        super().__init__(cast("Any", env), cast("Any", scope), cast("Any", self), lambda *_: None)
        quotas.set_table(QuotaTable({QuotaType.PRODUCE: {Entity(client="c"): 1024.0}}, CLIENT))
        quotas.produced(("ANONYMOUS", "c"), 20480, 5000)
        self.known: dict[str, TopicView] = {}
        self.rules = FakeRules()
        self.opened: dict[str, NamespaceView] = {}
        self.taken: dict[str, SnapshotView] = {}
        self.ready = True
        self.turns: list[ClockChange] = []
        self.gate: trio.Event | None = None
        self.asked = trio.Event()
        self.recording: JournaledProcess

    @property
    def operations(self) -> Sequence[ApiOperation]:
        return [self._with_own_run(operation) for operation in OPERATIONS]

    def _with_own_run(self, operation: ApiOperation) -> ApiOperation:
        """An operation that calls the method with its name, if there is one."""
        run: Callable[..., Awaitable[object]] | None = vars(FakeBroker).get(operation.name)
        if run is None:
            return operation
        return operation._replace(run=update_wrapper(run, operation.run))

    @property
    def faults(self) -> Any:
        return self.rules

    @cached_property
    def journal(self) -> JournalCollector:
        """The journal of a process that records when the test says so."""
        self.recording = JournaledProcess()
        return journal_of_one_process(self.recording, lambda *_: None)

    def record_faults(self, count: int) -> None:
        """Record that a rule fired so often."""
        assert self.recording.journal is not None
        for _ in range(count):
            record = note_record(time.perf_counter_ns(), 0.0, "fault", {"rule": "1"})
            self.recording.journal.add(record)

    def _statuses(self) -> list[RoleStatus]:
        state = RoleState.READY if self.ready else RoleState.WAITING
        return [RoleStatus("worker-0", 17, 1, state, 3, None)]

    async def request_all(self, request: object, names: Sequence[str] = ()) -> dict[str, Any]:
        """The answers of the one worker."""
        if isinstance(request, MetricsRequest):
            return {"worker-0": self.worker.snapshot()}
        assert isinstance(request, ClockAdvanced)
        self.turns.append(ClockChange(**self.clock.change))
        return {}

    async def request_all_within(self, request: object, bound: object) -> tuple[Any, list[str]]:
        return {}, []

    async def get_cluster(self) -> Cluster:
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        broker = BrokerView(1, None, (Endpoint("PLAINTEXT", "127.0.0.1", 9092),))
        return Cluster("abc", 1, 1, 7, (broker,), len(self.known), 0)

    async def list_topics(self) -> TopicList:
        return TopicList(
            tuple(
                TopicSummary(topic.name, topic.topic_id, topic.internal, len(topic.partitions))
                for topic in self.known.values()
            )
        )

    async def get_topic(self, name: str) -> TopicView:
        if name not in self.known:
            raise NotFound("UNKNOWN_TOPIC_OR_PARTITION", f"no topic {name!r}", "Create it first.")
        return self.known[name]

    async def create_topic(self, new: TopicCreation) -> TopicView:
        if new.name in self.known:
            raise Conflict("TOPIC_ALREADY_EXISTS", f"there is a topic {new.name!r}")
        if new.name == "bug":
            raise RuntimeError("secret detail")
        partitions = tuple(
            PartitionView(index, 1, 0, (1,), (1,), 0, 4, 4, 100, "worker-0")
            for index in range(new.partitions or 1)
        )
        topic = TopicView(new.name, "AAAA", False, partitions, dict(new.configs))
        self.known[new.name] = topic
        return topic

    async def delete_topic(self, name: str) -> None:
        await self.get_topic(name)
        del self.known[name]

    async def compact_topic(self, name: str) -> TopicView:
        return await self.get_topic(name)

    async def act(self, action: BrokerAction) -> ActionResult:
        check_action(action)
        group = getattr(action.action, "group", None)
        if group != "g":
            raise NotFound("GROUP_ID_NOT_FOUND", f"no group {group!r}")
        return ActionResult(2)

    async def list_groups(self) -> GroupList:
        return GroupList((GroupSummary("team/one", "Stable", "consumer", 1),))

    async def get_group(self, group_id: str, query: GroupQuery) -> GroupView:
        del query
        if group_id != "team/one":
            raise NotFound("GROUP_ID_NOT_FOUND", f"no group {group_id!r}")
        member = Member("m-1", None, "c", "/127.0.0.1", (AssignedTopic("t", (0, 1)),))
        offsets = (
            CommittedOffsetView("t", 0, 3, "", 5, 2),
            CommittedOffsetView("gone", 0, 3, "", None, None),
        )
        return GroupView(
            *(group_id, "Stable", "consumer", "range", 4, "m-1", "worker-0"), (member,), offsets
        )

    async def list_connections(self) -> ConnectionsView:
        connection = Connection(
            number=3,
            connection_id="127.0.0.1:9092-127.0.0.1:5-3",
            listener="PLAINTEXT",
            client_address="127.0.0.1:5",
            principal="User:al \ud800 ice",
            client_id="odd \ud800 id",
            software_name="librdkafka",
            software_version="2.6",
            age_ms=12,
            idle_ms=2,
            state="muted",
            in_flight="Fetch",
        )
        fresh = connection._replace(client_id=None, software_name=None, software_version=None)
        processor = ProcessorView(
            "processor-0", 20, 1, 2, (connection, fresh._replace(in_flight=None))
        )
        return ConnectionsView(
            mode="single",
            now=5.0,
            total=2,
            limit=None,
            rate=0.2,
            rate_limit=None,
            listeners=(
                ListenerView("PLAINTEXT", "127.0.0.1", 9092, 2, 5, 0.2, 1.5, 0.25, 1, 0, False),
            ),
            processors=(processor,),
            addresses=(
                AddressView("127.0.0.1", 2, 3, 0.2, 1.5),
                AddressView("10.0.0.1", 0, None, None, None),
            ),
            addresses_total=2,
            rejections=(
                RejectionView(7, "PLAINTEXT", "127.0.0.1:6", "limit", "No file was left."),
            ),
            connection_events=(
                ConnectionEventView(
                    4, 9, "handed", 3, "PLAINTEXT", "127.0.0.1:5", "processor-0", None
                ),
                ConnectionEventView(5, 7, "refused", 4, "PLAINTEXT", "127.0.0.1:6", None, "limit"),
            ),
            unserved=(
                UnservedClientView(3, "10.0.0.9", "app", "lib", "1", "transactions", "none", 2),
            ),
        )

    async def list_namespaces(self) -> NamespaceList:
        return NamespaceList(tuple(self.opened.values()))

    async def open_namespace(self, new: NamespaceCreation) -> NamespaceView:
        view = NamespaceView(new.name or "ns", "127.0.0.1:1")
        self.opened[view.name] = view
        return view

    async def remove_namespace(self, name: str) -> None:
        if self.opened.pop(name, None) is None:
            raise NotFound("NO_SUCH_NAMESPACE", f"no namespace {name!r}")

    async def list_snapshots(self) -> SnapshotList:
        return SnapshotList(tuple(self.taken.values()))

    async def get_snapshot(self, name: str) -> SnapshotView:
        if name not in self.taken:
            raise NotFound("NO_SUCH_SNAPSHOT", f"no snapshot {name!r}")
        return self.taken[name]

    async def take_snapshot(self, new: SnapshotCreation) -> SnapshotView:
        view = SnapshotView(new.name or "1", 5, 2, 10)
        self.taken[view.name] = view
        return view

    async def restore_snapshot(self, name: str) -> SnapshotView:
        return await self.get_snapshot(name)

    async def remove_snapshot(self, name: str) -> None:
        del self.taken[(await self.get_snapshot(name)).name]

    async def reset(self) -> ResetResult:
        dropped = len(self.known)
        self.known.clear()
        return ResetResult(dropped, 1)


@pytest.fixture
def fake_broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
async def client(fake_broker: FakeBroker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_app(fake_broker), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@pytest.fixture
def client_of(fake_broker: FakeBroker) -> Callable[..., httpx.AsyncClient]:
    """A client of an application that knows these host names and has this token."""

    def make(*allowed_hosts: str, token: str = "") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(make_app(fake_broker, allowed_hosts, token))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")

    return make

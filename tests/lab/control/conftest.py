"""A broker that exists only as far as the control API can see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal

import httpx
import pytest
import trio

from minibroker.broker.metrics.metrics import ProcessMetrics, Snapshot
from minibroker.lab.control.action_shapes import ActionResult, BrokerAction, check_action
from minibroker.lab.control.backend import (
    AddressView,
    AssignedTopic,
    BrokerView,
    ClockChange,
    ClockView,
    Cluster,
    CommittedOffsetView,
    Conflict,
    Connection,
    ConnectionEventView,
    ConnectionsView,
    Endpoint,
    GroupList,
    GroupSummary,
    GroupView,
    Health,
    ListenerView,
    Member,
    NotFound,
    PartitionView,
    ProcessHealth,
    ProcessorView,
    RejectionView,
    ResetResult,
    TopicCreation,
    TopicList,
    TopicSummary,
    TopicView,
    UnservedClientView,
)
from minibroker.lab.control.client_metrics_shapes import ClientMetricsView
from minibroker.lab.control.fault_shapes import FaultList, FaultRelease, FaultRule, FaultView
from minibroker.lab.control.http import make_app
from minibroker.lab.control.journal_shapes import (
    AssertionView,
    EntryQuery,
    FrameView,
    JournalAssertion,
    JournalChange,
    JournalPage,
    JournalView,
    SendLine,
)
from minibroker.lab.control.journal_views import views
from minibroker.lab.control.namespace_shapes import NamespaceCreation, NamespaceList, NamespaceView
from minibroker.lab.control.quota_shapes import (
    QuotaExplanation,
    QuotaLevel,
    QuotaQuery,
    QuotaSample,
    QuotasView,
    QuotaThrottle,
    QuotaUse,
)
from minibroker.lab.control.snapshot_shapes import SnapshotCreation, SnapshotList, SnapshotView
from minibroker.lab.journal.entries import EntryKind, JournalEntry

ENTRY = JournalEntry(
    sequence=3, clock_ms=5.5, kind=EntryKind.FAULT, role="processor-0", details={"rule": "1"}
)


class FakeJournal:
    """Obeys the ``JournalBackend`` protocol with one entry."""

    def __init__(self) -> None:
        self.queries: list[EntryQuery] = []
        self.assertions: list[JournalAssertion] = []
        self.state = JournalView(False, 1, 3, 2, 0, 1024, 1 << 26)

    async def view(self) -> JournalView:
        return self.state

    async def change(self, change: JournalChange) -> JournalView:
        if change.enabled is not None:
            self.state = self.state._replace(enabled=change.enabled)
        return self.state

    async def clear(self) -> None:
        self.state = self.state._replace(entries=0)

    async def find(self, query: EntryQuery) -> JournalPage:
        if not self.state.enabled:
            raise Conflict("JOURNAL_OFF", "the journal is off")
        self.queries.append(query)
        return JournalPage(views([ENTRY]), 3, 2, 0, False)

    async def check(self, assertion: JournalAssertion) -> AssertionView:
        self.assertions.append(assertion)
        return AssertionView(True, "1 entry matches", views([ENTRY]), 3)

    async def dissect(self, sequence: int) -> FrameView:
        if sequence != ENTRY.sequence:
            raise NotFound("NO_SUCH_FRAME", f"no frame of an entry {sequence} is kept")
        return FrameView("frame: 1 byte")

    async def stream(self, query: EntryQuery, send: SendLine) -> None:
        for line in (b"\n", b'{"sequence":3}\n'):
            await send(line)


class FakeBackend:
    """Obeys the ``Backend`` protocol over a dictionary of topics."""

    def __init__(self) -> None:
        self.known: dict[str, TopicView] = {}
        self.rules: dict[str, FaultView] = {}
        self.waits: list[tuple[int, int]] = []
        self.opened: dict[str, NamespaceView] = {}
        self.taken: dict[str, SnapshotView] = {}
        self.ready = True
        self.journal = FakeJournal()
        self.worker = ProcessMetrics("worker-0")
        self.time = ClockView(now=5.0, wall_ms=1_000, offset_ms=0.0, rate=1.0, frozen=False)
        self.turns: list[ClockChange] = []
        self.gate: trio.Event | None = None
        self.asked = trio.Event()

    async def health(self) -> Health:
        process = ProcessHealth("worker-0", 17, "running" if self.ready else "restarting", 3)
        status: Literal["ready", "not_ready"] = "ready" if self.ready else "not_ready"
        return Health(self.ready, status, (), "0.1", 1500, (process,))

    async def cluster(self) -> Cluster:
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        broker = BrokerView(1, None, (Endpoint("PLAINTEXT", "127.0.0.1", 9092),))
        return Cluster("abc", 1, 1, 7, (broker,), len(self.known), 0)

    async def topics(self) -> TopicList:
        return TopicList(
            tuple(
                TopicSummary(topic.name, topic.topic_id, topic.internal, len(topic.partitions))
                for topic in self.known.values()
            )
        )

    async def topic(self, name: str) -> TopicView:
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
        await self.topic(name)
        del self.known[name]

    async def compact_topic(self, name: str) -> None:
        await self.topic(name)

    async def client_metrics(self) -> ClientMetricsView:
        return ClientMetricsView(())

    async def act(self, action: BrokerAction) -> ActionResult:
        check_action(action)
        if action.group != "g":
            raise NotFound("GROUP_ID_NOT_FOUND", f"no group {action.group!r}")
        return ActionResult(2)

    async def faults(self) -> FaultList:
        return FaultList(tuple(self.rules.values()))

    async def fault(self, fault_id: str) -> FaultView:
        if fault_id not in self.rules:
            raise NotFound("NO_SUCH_FAULT", f"no rule {fault_id!r}")
        return self.rules[fault_id]

    async def add_fault(self, rule: FaultRule) -> FaultView:
        fault_id = rule.name or str(len(self.rules) + 1)
        given = {name: value for name, value in rule._asdict().items() if value is not None}
        self.rules[fault_id] = view = FaultView(fault_id, given, 2, 1, 1, (), 5)
        return view

    async def remove_fault(self, fault_id: str) -> None:
        await self.fault(fault_id)
        del self.rules[fault_id]

    async def remove_faults(self) -> None:
        self.rules.clear()

    async def release_fault(self, fault_id: str) -> FaultRelease:
        return FaultRelease((await self.fault(fault_id)).held)

    async def wait_fault(self, fault_id: str, hits: int, timeout_ms: int) -> FaultView:
        self.waits.append((hits, timeout_ms))
        return await self.fault(fault_id)

    async def groups(self) -> GroupList:
        return GroupList((GroupSummary("team/one", "Stable", "consumer", 1),))

    async def group(self, group_id: str) -> GroupView:
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

    async def connections(self) -> ConnectionsView:
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
            refusals=(RejectionView(7, "PLAINTEXT", "127.0.0.1:6", "limit", "No file was left."),),
            happenings=(
                ConnectionEventView(
                    4, 9, "handed", 3, "PLAINTEXT", "127.0.0.1:5", "processor-0", None
                ),
                ConnectionEventView(5, 7, "refused", 4, "PLAINTEXT", "127.0.0.1:6", None, "limit"),
            ),
            unserved=(
                UnservedClientView(3, "10.0.0.9", "app", "lib", "1", "transactions", "none", 2),
            ),
        )

    async def quotas(self) -> QuotasView:
        use = QuotaUse("produce", "", "c", 2048.0, 1024.0, 2.0, "/config/clients/c", None, 40, 900)
        throttle = QuotaThrottle(7, 40, "produce", "", "c", "Produce", 900)
        return QuotasView(True, "mute", 1000, 11, 0.5, (use,), 1, (throttle,))

    async def explain_quota(self, question: QuotaQuery) -> QuotaExplanation:
        level = QuotaLevel("/config/clients/c", 1024.0, True, "holds")
        return QuotaExplanation(
            type=question.type,
            user=question.user,
            client_id=question.client_id,
            key="producer_byte_rate",
            sharing="all share",
            levels=(level,),
            quota=1024.0,
            path="/config/clients/c",
            samples=(QuotaSample(500, 20480.0),),
            rate=2048.0,
            window_ms=10_000,
            throttle_ms=10_000,
            formula="x",
            throttle=None,
        )

    async def clock(self) -> ClockView:
        return self.time

    async def turn_clock(self, change: ClockChange) -> ClockView:
        self.turns.append(change)
        return self.time

    async def namespaces(self) -> NamespaceList:
        return NamespaceList(tuple(self.opened.values()))

    async def open_namespace(self, new: NamespaceCreation) -> NamespaceView:
        view = NamespaceView(new.name or "ns", "127.0.0.1:1")
        self.opened[view.name] = view
        return view

    async def remove_namespace(self, name: str) -> None:
        if self.opened.pop(name, None) is None:
            raise NotFound("NO_SUCH_NAMESPACE", f"no namespace {name!r}")

    async def snapshots(self) -> SnapshotList:
        return SnapshotList(tuple(self.taken.values()))

    async def snapshot(self, name: str) -> SnapshotView:
        if name not in self.taken:
            raise NotFound("NO_SUCH_SNAPSHOT", f"no snapshot {name!r}")
        return self.taken[name]

    async def take_snapshot(self, new: SnapshotCreation) -> SnapshotView:
        view = SnapshotView(new.name or "1", 5, 2, 10)
        self.taken[view.name] = view
        return view

    async def restore_snapshot(self, name: str) -> SnapshotView:
        return await self.snapshot(name)

    async def remove_snapshot(self, name: str) -> None:
        del self.taken[(await self.snapshot(name)).name]

    async def reset(self) -> ResetResult:
        dropped = len(self.known)
        self.known.clear()
        return ResetResult(dropped, 1)

    async def metrics(self) -> Sequence[Snapshot]:
        return [self.worker.snapshot()]


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def client(backend: FakeBackend) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_app(backend), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@pytest.fixture
def client_of(backend: FakeBackend) -> Callable[..., httpx.AsyncClient]:
    """A client of an application that knows these host names and has this token."""

    def make(*allowed_hosts: str, token: str = "") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(make_app(backend, allowed_hosts, token))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")

    return make

"""A controller with its metadata, and roles that answer as a test determines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.admission.connection_events import ConnectionFigures, RecentConnectionEvents
from minibroker.broker.apis.base import Mutations, Mutator
from minibroker.broker.metadata.configs import Alteration, ConfigOperation, Op
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import BROKER, Image, Update
from minibroker.broker.metadata.quotas import EffectiveQuotas
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metrics.metrics import ProcessMetrics
from minibroker.broker.network.reports import AcceptorReport, ProcessorReport
from minibroker.broker.process.environment import CONTROLLER, Environment
from minibroker.broker.process.messages import (
    ConditionsRequest,
    DetailsRequest,
    GroupsRequest,
    ImageApplied,
    LogsRequest,
    MetricsRequest,
    RegisterRole,
)
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.manager import ClientQuotaManager
from minibroker.broker.roles.metadata_publisher import MetadataPublisher
from minibroker.broker.settings import Settings
from minibroker.broker.settings.dynamic import Configs
from minibroker.broker.telemetry import ClientInstances
from minibroker.lab.control.broker import ControlledBroker
from minibroker.runtime.roles import RoleState, RoleStatus
from minibroker.runtime.rpc import RpcConnection, memory_channel_pair
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
            raise AssertionError(f"{request} is not expected")

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
        raise AssertionError(f"{configs} are not altered by this API")

    def refuse(self, reason: str) -> None:
        raise AssertionError(reason)

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
        self.broker = ControlledBroker(self.env, scope, scope.subscribers, lambda *_: None)

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

"""What the tests of APIs share: a cluster to look at, and a request's way through the three steps.

`Desk` stands in for processor, controller and worker at once: it splits, executes each part at its
owner, and merges, encoding every response in its version so that a field which that version lacks
or cannot hold fails the test.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from minibroker.apis.base import CONTROLLER, Api, Caller, Context
from minibroker.cluster.controller import ClusterController
from minibroker.cluster.image import Image, Update, apply_update
from minibroker.cluster.placement import OFFSETS_TOPIC
from minibroker.cluster.store.sqlite import MEMORY, SqliteStore
from minibroker.cluster.topics import NewTopic
from minibroker.config import OFFSETS_TOPIC_NUM_PARTITIONS, Settings
from minibroker.coordinator.limits import GroupLimits
from minibroker.coordinator.service import GroupService
from minibroker.storage.config import LogConfig
from minibroker.storage.log import Log
from protocol.compiler import decode, encode
from protocol.headers import RequestHeader

ENDPOINTS = {"PLAINTEXT": ("127.0.0.1", 9092), "OUTSIDE": ("example.test", 19092)}
WORKERS = 2


class DeskControllerScope:
    """A controller whose updates reach the processor when they are published."""

    def __init__(self, cluster: ClusterController, settings: Settings) -> None:
        self.cluster = cluster
        self.settings = settings
        self.published: list[Update] = []
        self.at_processor = cluster.image

    @property
    def image(self) -> Image:
        return self.cluster.image

    async def publish(self, updates: Sequence[Update]) -> None:
        for update in updates:
            self.at_processor = apply_update(self.at_processor, update)
        self.published += updates


class Desk:
    """Takes one request after the other, as version ``version`` from listener ``listener``."""

    def __init__(self, scope: DeskControllerScope) -> None:
        self.controller = scope
        self.cluster = scope.cluster
        self.settings = scope.settings
        self.workers: dict[int, Any] = {}
        self.image: Image | None = None
        """Set it to show the processor another image than the controller's."""
        self.asked: Mapping[int, Any] = {}
        """The parts of the last request, by owner."""

    def context(self, key: int, version: int, listener: str = "PLAINTEXT") -> Context:
        return Context(
            header=RequestHeader(key, version, 1, "test"),
            caller=Caller("c-1", listener, "127.0.0.1", 5000),
            image=self.image or self.controller.at_processor,
            settings=self.settings,
            workers=WORKERS,
            received=0.0,
            now=0.0,
            wall_ms=0,
            served={},
            reference=_no_records,
        )

    async def ask(
        self, api: Api[Any, Any, Any, Any], request: Any, version: int, listener: str = "PLAINTEXT"
    ) -> Any:
        """The response as a client decodes it."""
        request = decode(type(request), version, encode(request, version))
        self.asked = api.split(self.context(api.key, version, listener), request)
        replies = {}
        for owner, part in self.asked.items():
            sent = pickle.loads(pickle.dumps(part))
            if owner == CONTROLLER:
                assert api.execute_at_controller is not None
                reply = await api.execute_at_controller(self.controller, sent)
            else:
                assert api.execute is not None
                reply = api.execute(self.workers[owner], sent)
                if inspect.isawaitable(reply):
                    reply = await reply
            replies[owner] = pickle.loads(pickle.dumps(reply))
        response = api.merge(self.context(api.key, version, listener), request, replies)
        assert response is not None
        return decode(type(response), version, encode(response, version))


def _no_records(records: object) -> Any:
    raise AssertionError("this request carries no records")


DeskMaker = Callable[..., Any]


@pytest.fixture
async def make_desk() -> AsyncIterator[DeskMaker]:
    """``await make_desk("num.partitions=3")``: a cluster of one broker with these settings."""
    stores = []

    async def make(*pairs: str) -> Desk:
        settings = Settings.from_sources(pairs=pairs)
        store = SqliteStore(MEMORY)
        stores.append(store)
        cluster = await ClusterController.start(
            store, settings, endpoints=ENDPOINTS, random=Random(1), wall_ms=0
        )
        return Desk(DeskControllerScope(cluster, settings))

    yield make
    for store in stores:
        await store.close()


@pytest.fixture
async def desk(make_desk: DeskMaker) -> Desk:
    made: Desk = await make_desk()
    return made


class GroupWorker:
    """As much of an I/O worker as the APIs of groups ask for."""

    def __init__(self, settings: Settings, directory: Path, random: Random) -> None:
        self.directory = directory
        self.logs: dict[int, Log] = {}
        self.groups = GroupService(
            GroupLimits.from_settings(settings),
            partitions=settings[OFFSETS_TOPIC_NUM_PARTITIONS],
            open_log=self.open_log,
            now=trio.current_time,
            wall_ms=self.wall_ms,
            random=random,
        )

    def open_log(self, partition: int) -> Log:
        log = Log.open(self.directory, OFFSETS_TOPIC, partition, LogConfig(), now_ms=0)
        self.logs[partition] = log
        return log

    def wall_ms(self) -> int:
        return GROUPS_WALL_MS


GROUPS_WALL_MS = 1_700_000_000_000


@pytest.fixture
async def group_desk(make_desk: DeskMaker, tmp_path: Path) -> AsyncIterator[Desk]:
    """A desk whose workers coordinate groups, with topics ``t`` (3 partitions) and ``u`` (1).

    Members need not wait for others: there is no initial delay.
    """
    desk: Desk = await make_desk("group.initial.rebalance.delay.ms=0")
    outcome = await desk.cluster.create_topics([NewTopic("t", 3), NewTopic("u", 1)])
    await desk.controller.publish(outcome.updates)
    for owner in range(WORKERS):
        desk.workers[owner] = GroupWorker(desk.settings, tmp_path, Random(owner))
    yield desk
    for worker in desk.workers.values():
        for log in worker.logs.values():
            log.abandon()

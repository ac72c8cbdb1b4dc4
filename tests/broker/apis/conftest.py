"""Fixtures of API tests: a cluster, and the three steps of a request.

`LocalApis` replaces processor, controller and worker. It splits a request, executes each part at
its owner, and merges the replies. It encodes every response in its version, so a field that the
version lacks or cannot hold fails the test.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
import trio

from minibroker.broker.apis.base import CONTROLLER, Api, Caller, Context, Mutator, Round, Waiter
from minibroker.broker.apis.fetch_sessions import FetchSessionCache
from minibroker.broker.apis.fetch_watches import FetchWatches
from minibroker.broker.apis.registry import Authorizers
from minibroker.broker.apis.transactions import AddPartitionsPart, PartitionsToAdd
from minibroker.broker.groups.group import GroupLimits
from minibroker.broker.groups.service import GroupService
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import FileSlice, Log
from minibroker.broker.log.replica_manager import LogManager, Partition, ReplicaManager
from minibroker.broker.log.segment import SegmentFiles
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import (
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    Image,
    Update,
    apply_update,
    partition_owner,
    transaction_partition,
)
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.manager import ClientQuotaManager, Mutated
from minibroker.broker.roles.io_worker import Purgatory
from minibroker.broker.security.principal import ANONYMOUS
from minibroker.broker.settings import Settings
from minibroker.broker.settings.definitions import NODE_ID, OFFSETS_TOPIC_NUM_PARTITIONS
from minibroker.broker.settings.dynamic import Configs, DynamicSettings
from minibroker.broker.telemetry import ClientInstances
from minibroker.runtime.arena import ArenaRef
from minibroker_protocol.compiler import decode, encode, encoder
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import RequestHeader
from tests.broker.apis.transacting import TransactionWorker

T = TypeVar("T")

ENDPOINTS = {"PLAINTEXT": ("127.0.0.1", 9092), "OUTSIDE": ("example.test", 19092)}
WORKERS = 2
WATCHES_MAX = 3
"""Fetch sessions that each worker remembers."""


class MutationsToTry:
    """Accepts mutations while the controller of `LocalApis` has permits left."""

    def __init__(self, scope: LocalControllerScope) -> None:
        self._scope = scope

    def take(self, permits: int) -> bool:
        if self._scope.permits < 0:
            return False
        self._scope.permits -= permits
        return True

    def mutated(self) -> Mutated:
        return Mutated(0, 0, False, None, max(0, -self._scope.permits))


class LocalControllerScope:
    """A controller whose updates reach the processor when they are published."""

    def __init__(self, cluster: ClusterController, settings: Settings) -> None:
        self.cluster = cluster
        self.directory_id = bytes(range(16))
        self.settings = settings
        self.published: list[Update] = []
        self.at_processor = cluster.image
        self.permits = 10**9
        self.telemetry = ClientInstances(1000)
        self.mutator: Mutator | None = None
        self.bad_keys: list[str] = []

    def unusable_keys(self, configs: Configs) -> list[str]:
        return [text for text in self.bad_keys if text in str(configs)]

    @property
    def image(self) -> Image:
        return self.cluster.image

    @property
    def quotas(self) -> ClientQuotaManager:
        return ClientQuotaManager(QuotaLedger(11, 1000, shared=False))

    def mutations(self, mutator: Mutator) -> MutationsToTry:
        self.mutator = mutator
        return MutationsToTry(self)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work)

    def refuse(self, reason: str) -> None:
        raise AssertionError(reason)

    async def publish(self, updates: Sequence[Update]) -> None:
        for update in updates:
            self.at_processor = apply_update(self.at_processor, update)
        self.published += updates


class LocalApis:
    """Handles one request at a time, of version ``version`` from listener ``listener``."""

    def __init__(self, scope: LocalControllerScope) -> None:
        self.controller = scope
        self.cluster = scope.cluster
        self.settings = scope.settings
        self.authorizers = Authorizers(scope.settings)
        self.dynamic_settings = DynamicSettings(scope.settings)
        self.principal = ANONYMOUS
        self.client_id = "test"
        self.wall_ms = 0
        self.by_token = False
        self.workers: dict[int, Any] = {}
        self.image: Image | None = None
        """Set it to show the processor another image than the controller's."""
        self.asked: Mapping[int, Any] = {}
        """The parts of the last request, by owner."""

    def context(self, key: int, version: int, listener: str = "PLAINTEXT") -> Context:
        return Context(
            header=RequestHeader(key, version, 1, self.client_id),
            caller=Caller("c-1", listener, "127.0.0.1", 5000, self.principal, self.by_token),
            authorizer=self.authorizers.of(self.controller.at_processor),
            image=self.image or self.controller.at_processor,
            settings=self.settings,
            dynamic_settings=self.dynamic_settings,
            workers=WORKERS,
            received=0.0,
            now=0.0,
            wall_ms=self.wall_ms,
            served={},
            reference=_no_records,
        )

    async def create_topics(self, topics: Sequence[NewTopic]) -> None:
        """Create topics, and let the processor know them."""
        outcome = await self.cluster.create_topics(topics)
        await self.controller.publish(outcome.updates)

    async def ask(
        self, api: Api[Any, Any, Any, Any], request: Any, version: int, listener: str = "PLAINTEXT"
    ) -> Any:
        """Send a request and return the response as a client decodes it."""
        request = decode(type(request), version, encode(request, version))
        ctx = self.context(api.key, version, listener)
        self.asked = api.split(ctx, request)
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
        ctx.image = self.image or self.controller.at_processor
        response = api.merge(ctx, request, replies)
        assert response is not None
        return decode(type(response), version, encode(response, version))


def _no_records(records: object) -> Any:
    raise AssertionError("this request carries no records")


ApisMaker = Callable[..., Any]


@pytest.fixture
async def make_apis() -> AsyncIterator[ApisMaker]:
    """``await make_apis("num.partitions=3")``: a cluster of one broker with these settings."""
    stores = []

    async def make(*pairs: str) -> LocalApis:
        settings = Settings.from_sources(pairs=pairs)
        store = SqliteStore(MEMORY)
        stores.append(store)
        cluster = await ClusterController.start(
            store, settings, endpoints=ENDPOINTS, random=Random(1), wall_ms=0
        )
        return LocalApis(LocalControllerScope(cluster, settings))

    yield make
    for store in stores:
        await store.close()


@pytest.fixture
async def apis(make_apis: ApisMaker) -> LocalApis:
    made: LocalApis = await make_apis()
    return made


class GroupWorker:
    """The part of an I/O worker that group APIs use."""

    def __init__(
        self,
        settings: Settings,
        directory: Path,
        random: Random,
        image: Callable[[], Image] = Image,
    ) -> None:
        self.settings = settings
        self.directory = directory
        self.logs: dict[int, Log] = {}
        self.groups = GroupService(
            GroupLimits.from_settings(settings),
            partitions=settings[OFFSETS_TOPIC_NUM_PARTITIONS],
            open_partition=self.open_partition,
            now=trio.current_time,
            wall_ms=self.wall_ms,
            random=random,
            image=image,
        )

    def open_partition(self, index: int) -> Partition:
        log = Log.open(self.directory, OFFSETS_TOPIC, index, LogConfig(), now_ms=0)
        self.logs[index] = log
        return Partition(log, bytes(16), broker_id=1, leader_id=1, leader_epoch=0)

    def wall_ms(self) -> int:
        return GROUPS_WALL_MS


GROUPS_WALL_MS = 1_700_000_000_000


@pytest.fixture
async def group_apis(make_apis: ApisMaker, tmp_path: Path) -> AsyncIterator[LocalApis]:
    """Yield APIs whose workers coordinate groups, with topics ``t`` (3 partitions) and ``u`` (1).

    Members do not wait for others: there is no initial delay.
    """
    apis: LocalApis = await make_apis("group.initial.rebalance.delay.ms=0")
    await apis.create_topics([NewTopic("t", 3), NewTopic("u", 1)])
    for owner in range(WORKERS):
        apis.workers[owner] = GroupWorker(
            apis.settings, tmp_path, Random(owner), lambda: apis.controller.image
        )
    yield apis
    for worker in apis.workers.values():
        for log in worker.logs.values():
            log.abandon()


@pytest.fixture
async def transaction_apis(apis: LocalApis, tmp_path: Path) -> AsyncIterator[LocalApis]:
    """Yield APIs whose workers coordinate transactions, with topics ``t`` and ``u``.

    ``__transaction_state`` exists.
    """
    topics = [NewTopic("t", 3), NewTopic("u", 1), NewTopic(TRANSACTION_STATE_TOPIC)]
    await apis.create_topics(topics)
    apis.workers = {each: TransactionWorker(apis, each, tmp_path) for each in range(WORKERS)}
    async with trio.open_nursery() as nursery:
        for worker in apis.workers.values():
            nursery.start_soon(worker.transactions.run)
        yield apis
        nursery.cancel_scope.cancel()
    for worker in apis.workers.values():
        for log in worker.logs.values():
            log.abandon()


class Coordinator:
    """A transaction coordinator that gives scripted answers, and then confirms everything."""

    def __init__(self) -> None:
        self.asked: list[PartitionsToAdd] = []
        self.answers: list[ErrorCode | Exception] = []
        self.before_answer: Callable[[], None] = lambda: None

    async def answer(self, part: PartitionsToAdd) -> dict[tuple[str, int], ErrorCode]:
        self.asked.append(part)
        answer = self.answers.pop(0) if self.answers else ErrorCode.NONE
        await trio.lowlevel.checkpoint()
        self.before_answer()
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(part.partitions, answer)


class LogWorker:
    """The part of an I/O worker that APIs of records use."""

    def __init__(self, apis: LogApis, index: int, directory: Path) -> None:
        self.index = index
        self.settings = apis.settings
        self.random = Random(index)
        self.counted: list[tuple[str, int, int, int]] = []
        self.thread_calls = 0
        self.coordinator = Coordinator()
        self.slept_s = 0.0
        self.pauses = 0
        self._apis = apis
        self.data_dir = directory
        self._logs = LogManager(directory, apis.settings, self._owns, SegmentFiles())
        self._purgatory: Purgatory[tuple[str, int] | int] = Purgatory()
        self.fetch_watches = FetchWatches(WATCHES_MAX, self._purgatory.wake)
        self._replicas = ReplicaManager(
            self._logs, apis.settings[NODE_ID], self.fetch_watches.changed
        )

    def partition_owner(self, topic: str, partition: int) -> int:
        return partition_owner(topic, partition, WORKERS)

    async def request_owner(self, owner: int, key: ApiKey, part: AddPartitionsPart) -> Any:
        assert key is ApiKey.ADD_PARTITIONS_TO_TXN
        index = transaction_partition(part[0].transactional_id, 50)
        assert owner == partition_owner(TRANSACTION_STATE_TOPIC, index, WORKERS)
        return {each.transactional_id: await self.coordinator.answer(each) for each in part}

    async def sleep_real(self, seconds: float) -> None:
        self.slept_s += seconds
        self.pauses += 1
        await trio.lowlevel.checkpoint()

    def _owns(self, topic: str, partition: int) -> bool:
        return self.partition_owner(topic, partition) == self.index

    @property
    def image(self) -> Image:
        return self._apis.controller.image

    def now(self) -> float:
        return trio.current_time()

    def wall_ms(self) -> int:
        return GROUPS_WALL_MS

    def records(self, ref: ArenaRef) -> memoryview:
        return memoryview(self._apis.memory)[ref.offset : ref.offset + ref.length]

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        self.thread_calls += 1
        return await trio.to_thread.run_sync(work)

    def partition(self, topic: str, index: int) -> Partition | None:
        return self._replicas.get(self.image, topic, index, now_ms=self.wall_ms())

    def log_size(self, topic: str, index: int) -> int:
        return self._logs.size(topic, index)

    def appended(self, topic: str, partition: int, size_bytes: int, records: int) -> None:
        self.counted.append((topic, partition, size_bytes, records))
        self._purgatory.wake((topic, partition))

    async def wait_fetch_watch(self, session_id: int, deadline: float) -> None:
        await self._purgatory.wait((session_id,), deadline)

    async def wait_appended(self, partitions: frozenset[tuple[str, int]], deadline: float) -> None:
        await self._purgatory.wait(partitions, deadline)

    def watch_appended(self, partitions: frozenset[tuple[str, int]], waiter: Waiter) -> None:
        self._purgatory.add(partitions, waiter)

    def unwatch_appended(self, partitions: frozenset[tuple[str, int]], waiter: Waiter) -> None:
        self._purgatory.remove(partitions, waiter)

    def close(self) -> None:
        self._logs.abandon()


class LogApis(LocalApis):
    """APIs whose workers keep logs; records are in ``memory``, as they would be in the arena."""

    def __init__(self, scope: LocalControllerScope) -> None:
        super().__init__(scope)
        self.memory = bytearray()
        self.rounds: list[Round] = []
        self.fetch_sessions: FetchSessionCache | None = None
        """Set it to let fetches create sessions."""

    def hosted(self, topic: str, index: int) -> Partition:
        """The partition at its owner."""
        hosted = [worker.partition(topic, index) for worker in self.workers.values()]
        partition: Partition
        (partition,) = [each for each in hosted if each is not None]
        return partition

    def context(self, key: int, version: int, listener: str = "PLAINTEXT") -> Context:
        now = trio.current_time()
        ctx = super().context(key, version, listener)
        return replace(
            ctx,
            reference=self._reference,
            now=now,
            received=now,
            fetch_sessions=self.fetch_sessions,
        )

    def _reference(self, records: object) -> ArenaRef:
        assert isinstance(records, bytes | memoryview)
        ref = ArenaRef(0, len(self.memory), len(records), 1)
        self.memory += records
        return ref

    async def ask(
        self, api: Api[Any, Any, Any, Any], request: Any, version: int, listener: str = "PLAINTEXT"
    ) -> Any:
        """The response as a client decodes it, pieces of files read; None if there is none."""
        request = decode(type(request), version, encode(request, version))
        ctx = self.context(api.key, version, listener)
        replies: dict[int, Any] = {}
        self.asked = api.split(ctx, request)
        await self._round(api, Round(self.asked), replies)
        self.rounds = []
        while api.next_round is not None:
            ctx = replace(ctx, now=trio.current_time(), image=self.controller.at_processor)
            further = api.next_round(ctx, request, replies)
            if further is None:
                break
            self.rounds.append(further)
            await self._round(api, further, replies)
        response = api.merge(ctx, request, replies)
        if response is None:
            return None
        chunks = encoder(type(response), version)(response)
        return decode(type(response), version, b"".join(map(_read, chunks)))

    async def _round(
        self, api: Api[Any, Any, Any, Any], asked: Round, replies: dict[int, Any]
    ) -> None:
        assert api.execute is not None
        async with trio.open_nursery() as nursery:

            async def ask_one(owner: int, part: Any) -> None:
                assert api.execute is not None
                reply = api.execute(self.workers[owner], pickle.loads(pickle.dumps(part)))
                if inspect.isawaitable(reply):
                    reply = await reply
                replies[owner] = pickle.loads(pickle.dumps(reply))
                if asked.first_only:
                    nursery.cancel_scope.cancel()

            for owner, part in asked.parts.items():
                nursery.start_soon(ask_one, owner, part)


def _read(chunk: Any) -> bytes:
    if not isinstance(chunk, FileSlice):
        return bytes(chunk)
    data = Path(chunk.path).read_bytes()[chunk.position : chunk.position + chunk.length]
    assert len(data) == chunk.length
    return data


@pytest.fixture
async def log_apis(make_apis: ApisMaker, tmp_path: Path) -> AsyncIterator[LogApis]:
    """Yield APIs whose workers keep the logs of topics ``t`` (3 partitions) and ``u`` (1)."""
    made = LogApis((await make_apis()).controller)
    await made.create_topics([NewTopic("t", 3), NewTopic("u", 1)])
    for owner in range(WORKERS):
        made.workers[owner] = LogWorker(made, owner, tmp_path)
    yield made
    for worker in made.workers.values():
        worker.close()

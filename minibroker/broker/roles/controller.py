"""The controller role: stores cluster metadata and publishes it.

Owns the config store and its only writer (``metadata.controller``). It must never handle a client's
socket or a record. Invariant: a change is answered when every process has applied it, so every
later request on any connection sees it. After a kill, the next incarnation reads the store and
sends the complete image to every process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import trio

from minibroker.broker.apis.base import Mutations, Mutator
from minibroker.broker.apis.registry import APIS
from minibroker.broker.log.data_directory import (
    META_PROPERTIES,
    SESSION_FILE,
    STORE_FILE,
    DataDirectoryError,
    MetaProperties,
    ignores_case,
    lacks_meta_properties,
    logged_topics,
    read_meta_properties,
    write_meta_properties,
)
from minibroker.broker.log.errors import StorageFailed, disk_bytes, ignore_failure
from minibroker.broker.metadata.acls import plan_removals
from minibroker.broker.metadata.bootstrap import ControllerStartError, FoundLogs
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import Image, Update
from minibroker.broker.metadata.layout import LayoutError
from minibroker.broker.metadata.quotas import EffectiveQuotas
from minibroker.broker.metadata.store.sqlite import SqliteStore
from minibroker.broker.metadata.store.tree import Store, StoreError, UnavailableError
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.metrics.definitions import LOG_DIR_FREE, LOG_DIR_TOTAL
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.metrics import Series
from minibroker.broker.network.authenticator import ssl_contexts
from minibroker.broker.process.environment import (
    ACCEPTOR,
    CONTROLLER,
    FIRST_INCARNATION,
    PROCESSOR,
    RECORDER,
    WORKER,
    Environment,
    RoleRefusedError,
    note_topics,
    role_name,
)
from minibroker.broker.process.messages import ApiPart, ApiReply, ProducerIdsRequest, QueueCreation
from minibroker.broker.process.metadata_client import follow_log_levels
from minibroker.broker.process.storage_watch import StorageWatch
from minibroker.broker.quotas.manager import ClientQuotaManager, Mutated, MutationQuota
from minibroker.broker.roles.metadata_publisher import (
    AclChanges,
    ConfigChanges,
    MetadataPublisher,
    PrefixedAclChanges,
    TopicChanges,
    client_metric_gauges,
    read_gauges,
    watch_leadership,
)
from minibroker.broker.settings import (
    ACCEPTOR_MODE,
    ACTIVITY_ENABLE,
    AUTHORIZER_CLASS_NAME,
    CONTROLLER_QUOTA_WINDOW_NUM,
    CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS,
    DELEGATION_TOKEN_EXPIRY_CHECK_INTERVAL_MS,
    DELEGATION_TOKEN_SECRET_KEY,
    NODE_ID,
    SINGLE,
    TELEMETRY_MAX_BYTES,
    ZOOKEEPER_CONNECT,
    Settings,
)
from minibroker.broker.telemetry import ClientInstances
from minibroker.runtime.clock import Clock, now_ms
from minibroker.runtime.worktime import Account, WorkThread
from minibroker_protocol.types import ZERO_UUID, Uuid

if TYPE_CHECKING:
    from minibroker.broker.apis.base import ControllerScope
    from minibroker.broker.settings.dynamic import Configs


T = TypeVar("T")

Attach: TypeAlias = Callable[
    [Environment, "ControllerScope", MetadataPublisher, trio.Nursery], object
]
"""Attaches to a controller that starts what the launcher adds, before other roles can register.

Its tasks run in the nursery, and the publisher has the requests of roles that it handles.
"""

_logger = logging.getLogger(__name__)


async def controller(env: Environment, attach: Attach) -> None:
    """Run until ``env.stopping``, then close the store. ``attach`` is called once."""
    storage = StorageWatch(env, EventLog(env.name))
    with _refuse_role_on_unusable_store():
        is_unmarked = lacks_meta_properties(env.data_dir)
        store = await open_store(env.settings, env.data_dir, storage.failed)
    try:
        with _refuse_role_on_unusable_store():
            cluster = await ClusterController.start(
                store,
                env.settings,
                endpoints=env.endpoints,
                random=env.random,
                wall_ms=env.clock.wall_ms(),
                found_logs=_found_logs(env),
                free_bytes=storage.free_bytes,
                ignores_case=ignores_case(env.data_dir),
            )
            directory_id = _mark(env.data_dir, cluster.image)
            if is_unmarked:
                _log_adoption(env.data_dir, cluster.image)
        await _Controller(env, cluster, store, storage, directory_id).run(attach)
    finally:
        with trio.CancelScope(
            shield=True
        ):  # Closing is quick; cancelled, it would leave the store open.
            await store.close()


async def open_store(
    settings: Settings, data_dir: Path, failed: StorageFailed = ignore_failure
) -> Store:
    """The store that the settings name; `StoreError` if it can't be used.

    ``failed`` is called when a file of the store cannot be read or written. kazoo is loaded only
    for ZooKeeper.
    """
    connect = settings[ZOOKEEPER_CONNECT]
    if connect is None:
        return SqliteStore(data_dir / STORE_FILE, failed)
    try:
        from minibroker.broker.metadata.store.zookeeper import ZooKeeperStore, access_from
    except ImportError as error:
        text = f"zookeeper.connect needs kazoo ({error}): pip install minibroker[zookeeper]"
        raise StoreError(str(connect), text) from None
    access = access_from(settings)
    assert access is not None
    return await ZooKeeperStore.open(access, data_dir / SESSION_FILE)


@contextmanager
def _refuse_role_on_unusable_store() -> Iterator[None]:
    """Turn errors of the store into `RoleRefusedError`: they are printed without a traceback."""
    try:
        yield
    except (ControllerStartError, DataDirectoryError, LayoutError, StoreError) as error:
        raise RoleRefusedError(str(error)) from None


def _found_logs(env: Environment) -> FoundLogs:
    meta = read_meta_properties(env.data_dir)
    cluster_id = None if meta is None else meta.cluster_id
    # After the first start, a topic may be missing in the store because it was deleted.
    rebuild_topics = env.rebuild_topics and env.incarnation == FIRST_INCARNATION
    return FoundLogs(cluster_id, logged_topics(env.data_dir), rebuild_topics)


def _mark(data_dir: Path, image: Image) -> Uuid:
    """Mark the data directory as this cluster's, if it is new; return its id."""
    meta = read_meta_properties(data_dir)
    if meta is None:
        new = MetaProperties(image.cluster_id, image.controller_id)
        return write_meta_properties(data_dir, new)
    return meta.directory_id or ZERO_UUID


def _log_adoption(data_dir: Path, image: Image) -> None:
    fields = {
        "path": str(data_dir),
        "cluster": image.cluster_id,
        "node": image.controller_id,
    }
    text = f"a data directory without {META_PROPERTIES} was adopted and marked"
    _logger.warning("%s", text, extra={"fields": fields})


class _Controller:
    """Implements ``apis.base.ControllerScope``."""

    def __init__(
        self,
        env: Environment,
        cluster: ClusterController,
        store: Store,
        storage: StorageWatch,
        directory_id: Uuid,
    ) -> None:
        self.directory_id = directory_id
        self._env = env
        self._store = store
        self._storage = storage
        self._refusal = ""
        self._refused = trio.Event()
        self._work_thread = WorkThread(env.work_time)
        self.cluster = cluster
        self._followed = cluster.image
        self.telemetry = ClientInstances(env.settings[TELEMETRY_MAX_BYTES])
        self._publisher = MetadataPublisher(
            self._image, self._handle_request, cluster.image.number, _subscriber_names(env)
        )
        self._in_force = EffectiveQuotas(env.settings, env.ledger)
        self._ssl_contexts = ssl_contexts(env.settings)
        if self._ssl_contexts is not None:
            self._ssl_contexts.follow(cluster.image.configs)
        sleep = env.clock.sleep_real
        self._changes = ConfigChanges(store, cluster, self.publish, env.clock.now, sleep)
        kinds = (AclChanges, PrefixedAclChanges) if env.settings[AUTHORIZER_CLASS_NAME] else ()
        self._acls = [kind(store, cluster, self.publish, env.clock.now, sleep) for kind in kinds]
        is_shared = env.settings[ZOOKEEPER_CONNECT] is not None
        self._topics = TopicChanges(store, cluster, self.publish, sleep, writes_leaders=is_shared)
        env.metrics.watch_busy(env.work_time.busy_ns)
        env.metrics.watch_gauges(self._gauges)
        env.metrics.watch_gauges(self._client_metric_gauges)
        env.metrics.watch_gauges(self._disk_gauges)

    @property
    def quotas(self) -> ClientQuotaManager:
        self._in_force.follow(self.image)
        return self._in_force.quotas

    def _client_metric_gauges(self) -> dict[Series, float]:
        return client_metric_gauges(self.telemetry, self._env.clock.wall_ms())

    def _disk_gauges(self) -> dict[Series, float]:
        directory = str(self._env.data_dir)
        free, total = disk_bytes(directory)
        if free < 0:
            return {}
        return {
            (LOG_DIR_FREE.name, (directory,)): free,
            (LOG_DIR_TOTAL.name, (directory,)): total,
        }

    def _gauges(self) -> dict[Series, float]:
        quotas = self.quotas
        if not quotas.enabled:
            return {}
        return read_gauges(self._env.ledger, quotas.table, now_ms(self._env.clock))

    @property
    def settings(self) -> Settings:
        return self._env.settings

    @property
    def image(self) -> Image:
        return self.cluster.image

    def _image(self) -> Image:
        return self.cluster.image

    def mutations(self, mutator: Mutator) -> Mutations:
        settings = self._env.settings
        quota = MutationQuota(
            self.quotas,
            (mutator.user, mutator.client_id),
            windows=settings[CONTROLLER_QUOTA_WINDOW_NUM],
            window_ms=settings[CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS] * 1000,
            strict=mutator.strict,
        )
        return _Mutations(quota, self._env.clock)

    def unusable_keys(self, configs: Configs) -> Sequence[str]:
        return () if self._ssl_contexts is None else self._ssl_contexts.problems(configs)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        return await self._work_thread.run(work)

    async def publish(self, updates: Sequence[Update]) -> None:
        if self._ssl_contexts is not None:
            self._ssl_contexts.follow(self.image.configs)
        before, self._followed = self._followed, self.image
        follow_log_levels(self._env.settings, before, self.image)
        note_topics(self._env, before.topics, self.image.topics)
        await self._publisher.publish(updates)

    async def _remove_expired_tokens(self) -> None:
        interval_s = self._env.settings[DELEGATION_TOKEN_EXPIRY_CHECK_INTERVAL_MS] / 1000
        while True:
            await trio.sleep(interval_s)
            now_ms = self._env.clock.wall_ms()
            outcome = await self.cluster.change_tokens(partial(plan_removals, now_ms=now_ms))
            await self.publish(outcome.updates)

    async def run(self, attach: Attach) -> None:
        env = self._env
        async with trio.open_nursery() as nursery:
            attach(env, self, self._publisher, nursery)
            nursery.start_soon(self._publisher.run)
            nursery.start_soon(self._storage.run)
            nursery.start_soon(self._accept_roles, nursery)
            nursery.start_soon(self._changes.run)
            nursery.start_soon(self._topics.run)
            if env.settings[DELEGATION_TOKEN_SECRET_KEY]:
                nursery.start_soon(self._remove_expired_tokens)
            for changes in self._acls:
                nursery.start_soon(changes.run)
            nursery.start_soon(self._hold_leadership)
            nursery.start_soon(self._end_if_refused, nursery.cancel_scope)
            env.ready()
            await env.stopping.wait()
            nursery.cancel_scope.cancel()
        if self._refusal:
            raise RoleRefusedError(self._refusal)

    def refuse(self, reason: str) -> None:
        """End the role, because the broker can't work; the reason is printed."""
        self._refusal = reason
        self._refused.set()

    async def _hold_leadership(self) -> None:
        self.refuse(await watch_leadership(self._store, self.settings[NODE_ID]))

    async def _end_if_refused(self, scope: trio.CancelScope) -> None:
        await self._refused.wait()
        scope.cancel()

    async def _accept_roles(self, nursery: trio.Nursery) -> None:
        listener = self._env.transport.listen(CONTROLLER)
        while True:
            nursery.start_soon(self._publisher.serve_role, await listener.accept())

    async def _handle_request(self, request: Any) -> Any:
        # A coroutine, so that it runs as a task: if the readers on both sides of a conversation
        # waited for room to send, neither would read.
        if isinstance(request, ApiPart):
            return await self._execute(request)
        if isinstance(request, ProducerIdsRequest):
            try:
                return tuple(await self.cluster.allocate_producer_ids())
            except UnavailableError:
                return None
        if isinstance(request, QueueCreation):
            new = NewTopic(request.topic, config=request.config)
            outcome = await self.cluster.create_topics([new])
            await self.publish(outcome.updates)
            return outcome.topics[0].rejection
        raise TypeError(f"the controller cannot handle {type(request).__name__}")

    async def _execute(self, request: ApiPart) -> ApiReply:
        api = APIS[request.api_key]
        assert api.execute_at_controller is not None
        account = Account()
        with self._env.work_time.charge(account):
            reply = await api.execute_at_controller(self, request.part)
        return ApiReply(reply, account.worked_ns)


class _Mutations:
    """Implements ``apis.base.Mutations``: the mutation quota with the broker's clock."""

    def __init__(self, quota: MutationQuota, clock: Clock) -> None:
        self._quota = quota
        self._clock = clock

    def take(self, permits: int) -> bool:
        return self._quota.take(permits, now_ms(self._clock))

    def mutated(self) -> Mutated:
        return self._quota.mutated(now_ms(self._clock))


def _subscriber_names(env: Environment) -> Iterator[str]:
    if env.settings[ACCEPTOR_MODE] == SINGLE:
        yield role_name(ACCEPTOR, 0)
    if env.settings[ACTIVITY_ENABLE]:
        yield role_name(RECORDER, 0)
    yield from (role_name(PROCESSOR, index) for index in range(env.processors))
    yield from (role_name(WORKER, index) for index in range(env.workers))

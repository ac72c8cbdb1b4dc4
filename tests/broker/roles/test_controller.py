"""The controller role, with other roles played by the test."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.apis import metadata
from minibroker.broker.apis.base import Caller, ControllerRequest, ControllerScope, Mutator
from minibroker.broker.apis.configs import BROKER_TYPE
from minibroker.broker.log.checkpoint import write_topic_id
from minibroker.broker.log.data_directory import (
    META_PROPERTIES,
    SESSION_FILE,
    STORE_FILE,
    read_meta_properties,
)
from minibroker.broker.log.errors import StorageFailed
from minibroker.broker.metadata import layout
from minibroker.broker.metadata.image import (
    OFFSETS_TOPIC,
    ConfigChanged,
    Image,
    TopicCreated,
    Update,
)
from minibroker.broker.metadata.layout import CONFIG_CHANGES
from minibroker.broker.metadata.layout import CONTROLLER as CONTROLLER_PATH
from minibroker.broker.metadata.store.sqlite import SqliteStore
from minibroker.broker.metadata.store.tree import Store, StoreError
from minibroker.broker.metrics.conditions import ConditionKind
from minibroker.broker.process.environment import CONTROLLER, Environment, RoleRefusedError
from minibroker.broker.process.messages import (
    ApiPart,
    ApiReply,
    ImageApplied,
    ProducerIdsRequest,
    RegisterRole,
    RoleRegistered,
)
from minibroker.broker.process.storage_watch import PROBE_S
from minibroker.broker.roles.controller import controller, open_store
from minibroker.broker.roles.metadata_publisher import NOTIFICATION_RETENTION_S
from minibroker.broker.settings import Settings
from minibroker.lab.control.attach import attach_control
from minibroker.runtime.rpc import PeerFailed, RpcConnection
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.registry import ApiKey
from tests.broker.process.conftest import MakeEnvironment

CREATION = metadata.MetadataPart(("t",), Mutator("ANONYMOUS", "", strict=True))
NAMES = ("worker-0", "processor-0", "acceptor")


class RunningController:
    """One incarnation of a controller, and the roles connected to it."""

    def __init__(self, nursery: trio.Nursery, env: Any) -> None:
        self.env = env
        self.nursery = nursery
        self.updates: list[tuple[str, Update]] = []
        self.gate = trio.Event()
        self.gate.set()

    async def follow(self, name: str) -> tuple[RpcConnection, Image]:
        async def answer(request: Any) -> None:
            assert isinstance(request, Update)
            await self.gate.wait()
            self.updates.append((name, request))

        rpc = RpcConnection(await self.env.transport.connect(CONTROLLER), answer)
        self.nursery.start_soon(rpc.run)
        role, _, number = name.partition("-")
        welcome = await rpc.request(RegisterRole(role, int(number or 0), 1))
        assert isinstance(welcome, RoleRegistered)
        await rpc.request(ImageApplied())
        return rpc, welcome.image


@asynccontextmanager
async def running_controller(
    make_env: MakeEnvironment, *, kill: bool = False
) -> AsyncIterator[RunningController]:
    ready, scope = trio.Event(), trio.CancelScope()
    env = make_env(CONTROLLER, ready=ready.set, endpoints={"PLAINTEXT": ("h", 1)})

    async def live() -> None:
        with scope:
            await controller(env, attach_control)

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as lives:
            lives.start_soon(live)
            await ready.wait()
            yield RunningController(nursery, env)
            if kill:
                scope.cancel()
            env.stopping.set()
        nursery.cancel_scope.cancel()


async def test_registration_is_answered_with_the_image(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_controller(make_env) as at:
        _, image = await at.follow("worker-0")
        assert list(image.topics) == [OFFSETS_TOPIC]
        assert image.brokers[image.controller_id].endpoints == {"PLAINTEXT": ("h", 1)}
        assert (image.controller_epoch, image.number) == (1, 0)


async def test_change_is_answered_when_all_processes_applied_it(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_controller(make_env) as at:
        followers = {name: (await at.follow(name))[0] for name in NAMES}
        at.gate = trio.Event()
        answers: list[Any] = []

        async def create() -> None:
            part = ApiPart(ApiKey.METADATA, CREATION)
            answers.append(await followers["processor-0"].request(part))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            await wait_all_tasks_blocked()
            assert answers == []
            at.gate.set()
        (reply,) = answers
        assert isinstance(reply, ApiReply)
        assert reply.worked_ns >= 0
        assert sorted(name for name, _ in at.updates) == sorted(NAMES)


class WorkingApi:
    """Pretends to be an API that works in a thread."""

    @staticmethod
    async def execute_at_controller(scope: ControllerScope, part: int) -> int:
        return await scope.run_in_thread(lambda: sum(range(part)))


async def test_work_in_a_thread_is_charged_to_its_request(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "minibroker.broker.roles.controller.APIS", {ApiKey.PUSH_TELEMETRY: WorkingApi}
    )
    async with running_controller(make_env) as at:
        rpc, _ = await at.follow("processor-0")
        reply = await rpc.request(ApiPart(ApiKey.PUSH_TELEMETRY, 100_000))
    assert reply.reply == 4_999_950_000
    assert reply.worked_ns > 0


@pytest.mark.parametrize("kill", [False, True])
async def test_next_incarnation_keeps_the_topics_and_increments_its_epoch(
    make_env: MakeEnvironment, autojump_clock: MockClock, kill: bool, tmp_path: Path
) -> None:
    async with running_controller(make_env, kill=kill) as at:
        for name in NAMES[1:]:
            await at.follow(name)
        worker, image = await at.follow("worker-0")
        await worker.request(ApiPart(ApiKey.METADATA, CREATION))
        cluster_id = image.cluster_id
    assert (tmp_path / STORE_FILE).exists()
    async with running_controller(make_env) as at:
        _, image = await at.follow("worker-0")
        assert set(image.topics) == {OFFSETS_TOPIC, "t"}
        assert (image.controller_epoch, image.cluster_id) == (2, cluster_id)


async def test_producer_ids_are_handed_out_in_blocks(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    blocks: list[tuple[int, int]] = []
    for _ in range(2):
        async with running_controller(make_env) as at:
            worker, _ = await at.follow("worker-0")
            blocks += [await worker.request(ProducerIdsRequest()) for _ in range(2)]
    ids = [first + step for first, count in blocks for step in range(count)]
    assert len(set(ids)) == len(ids) == 4000


async def test_failed_producer_id_block_raises_a_health_condition(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with running_controller(make_env) as at:
        worker, _ = await at.follow("worker-0")
        monkeypatch.setattr(SqliteStore, "_transaction", full)
        assert await worker.request(ProducerIdsRequest()) is None
        assert [each.kind for each in at.env.conditions.all()] == [ConditionKind.STORAGE_FAILED]
        monkeypatch.undo()
        assert await worker.request(ProducerIdsRequest()) is not None
        await trio.sleep(PROBE_S)
        await wait_all_tasks_blocked()
        assert at.env.conditions.all() == ()


async def test_unknown_request_is_an_error(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_controller(make_env) as at:
        worker, _ = await at.follow("worker-0")
        with pytest.raises(PeerFailed, match="cannot handle str"):
            await worker.request("what?")


async def test_configs_are_altered_and_their_old_notices_purged(
    make_env: MakeEnvironment, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running_controller(make_env) as at:
        followers = {name: (await at.follow(name))[0] for name in NAMES}
        for value in ("5", "6"):
            config = AlterableConfig(name="max.connections", config_operation=0, value=value)
            resource = AlterConfigsResource(
                resource_type=BROKER_TYPE, resource_name="1", configs=[config]
            )
            part = ControllerRequest(
                IncrementalAlterConfigsRequest(resources=[resource]),
                version=1,
                caller=Caller("1", "PLAINTEXT", "127.0.0.1", 5000),
                client_id="",
                wall_ms=0,
            )
            asked = ApiPart(ApiKey.INCREMENTAL_ALTER_CONFIGS, part)
            reply = await followers["processor-0"].request(asked)
            assert [each.error_code for each in reply.reply.responses] == [0]
            await trio.sleep(NOTIFICATION_RETENTION_S)
        assert {name: update.changes for name, update in at.updates if update.number == 2} == {
            name: (ConfigChanged("brokers", "1", {"max.connections": "6"}),) for name in NAMES
        }
    store = SqliteStore(tmp_path / STORE_FILE)
    assert len(await store.children(CONFIG_CHANGES)) == 1
    await store.close()


async def test_store_of_another_cluster_is_rejected(
    make_env: MakeEnvironment, tmp_path: Path
) -> None:
    async with running_controller(make_env):
        pass
    env = make_env(CONTROLLER, settings=Settings.from_sources(pairs=["cluster.id=another"]))
    with pytest.raises(RoleRefusedError, match="the config store belongs to cluster"):
        await controller(env, attach_control)


async def test_controller_that_is_deposed_ends(
    make_env: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = trio.Event()
    stores: list[Store] = []

    async def open_and_report(settings: Settings, data_dir: Path, failed: StorageFailed) -> Store:
        stores.append(await open_store(settings, data_dir, failed))
        return stores[0]

    monkeypatch.setattr("minibroker.broker.roles.controller.open_store", open_and_report)

    async def depose() -> None:
        await ready.wait()
        await stores[0].delete(CONTROLLER_PATH)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(depose)
        env = make_env(CONTROLLER, ready=ready.set, endpoints={"PLAINTEXT": ("h", 1)})
        with pytest.raises(RoleRefusedError, match="/controller"):
            await controller(env, attach_control)


async def test_topics_written_by_other_programs_reach_all_processes(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[Store] = []

    async def open_and_report(settings: Settings, data_dir: Path, failed: StorageFailed) -> Store:
        stores.append(await open_store(settings, data_dir, failed))
        return stores[0]

    monkeypatch.setattr("minibroker.broker.roles.controller.open_store", open_and_report)
    async with running_controller(make_env) as at:
        for name in NAMES:
            await at.follow(name)
        await stores[0].create("/brokers/topics/theirs", b'{"partitions":{"0":[1]}}')
        await wait_all_tasks_blocked()
        assert {name for name, _ in at.updates} == set(NAMES)
        [change] = at.updates[0][1].changes
        assert isinstance(change, TopicCreated)
        assert change.topic.name == "theirs"
        await stores[0].create("/admin/delete_topics/theirs")
        await wait_all_tasks_blocked()
        assert len(at.updates) == 2 * len(NAMES)


async def test_invalid_topic_node_keeps_records_of_the_topic(
    make_env: MakeEnvironment, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / STORE_FILE)
    await store.ensure("/brokers/topics/spoilt")
    await store.set("/brokers/topics/spoilt", b"{")
    await store.ensure(layout.CLUSTER_ID)
    await store.set(layout.CLUSTER_ID, layout.encode_cluster_id("cluster"))
    await store.close()
    env = make_env(CONTROLLER, endpoints={"PLAINTEXT": ("h", 1)})
    (tmp_path / "spoilt-0").mkdir()
    write_topic_id(str(tmp_path / "spoilt-0"), b"\x01" * 16)
    with pytest.raises(RoleRefusedError, match="has records of it"):
        await controller(env, attach_control)


async def test_new_data_directory_is_marked_silently(
    make_env: MakeEnvironment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_controller(make_env):
        meta = read_meta_properties(tmp_path)
        assert meta is not None
        assert meta.node_id == 1
        assert meta.directory_id is not None
    assert "adopted" not in caplog.text


async def test_data_directory_of_an_earlier_version_is_adopted_and_logged(
    make_env: MakeEnvironment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_controller(make_env):
        before = read_meta_properties(tmp_path)
    (tmp_path / META_PROPERTIES).unlink()
    async with running_controller(make_env):
        after = read_meta_properties(tmp_path)
        assert before is not None
        assert after is not None
        assert after == before._replace(directory_id=after.directory_id)
    assert f"without {META_PROPERTIES} was adopted" in caplog.text


async def test_controller_that_was_restarted_does_not_rebuild_deleted_topics(
    make_env: MakeEnvironment, tmp_path: Path
) -> None:
    async with running_controller(make_env):
        pass
    (tmp_path / "deleted-0").mkdir()
    write_topic_id(str(tmp_path / "deleted-0"), b"\x01" * 16)

    def again(role: str, **changes: Any) -> Environment:
        return make_env(role, incarnation=2, rebuild_topics=True, **changes)

    async with running_controller(again) as at:
        _, image = await at.follow(NAMES[0])
        assert "deleted" not in image.topics


async def test_embedded_store_is_a_file_in_the_data_directory(tmp_path: Path) -> None:
    store = await open_store(Settings.from_sources(), tmp_path)
    assert isinstance(store, SqliteStore)
    assert (tmp_path / STORE_FILE).exists()
    await store.close()


async def test_zookeeper_that_is_not_there_is_named(tmp_path: Path) -> None:
    pairs = ["zookeeper.connect=127.0.0.1:1/x", "zookeeper.connection.timeout.ms=200"]
    with pytest.raises(StoreError, match=r"no ZooKeeper answered at 127\.0\.0\.1:1 for 200 ms"):
        await open_store(Settings.from_sources(pairs=pairs), tmp_path)
    assert not (tmp_path / SESSION_FILE).exists()
    assert not (tmp_path / STORE_FILE).exists()


def test_controller_import_does_not_load_kazoo() -> None:
    program = "import minibroker.broker.roles.controller, sys; print('kazoo' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


async def test_without_kazoo_its_installation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.startswith("minibroker.broker.metadata.store.zoo")
    ]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("kazoo", "kazoo.client", "kazoo.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    settings = Settings.from_sources(pairs=["zookeeper.connect=127.0.0.1:1"])
    with pytest.raises(StoreError, match=r"pip install minibroker\[zookeeper\]"):
        await open_store(settings, tmp_path)

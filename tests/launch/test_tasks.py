"""A broker of tasks starts, is killed in parts, and stops in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.settings import Settings
from minibroker.lab.faults.actions import Observe
from minibroker.lab.faults.fault_rule import FaultRule
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from tests.simulation.client import SimulatedClient

ROLES = ["controller", "worker-0", "worker-1", "processor-0", "processor-1", "acceptor"]
NAMES = {
    "separate": ROLES,
    "combined": ["controller", "combined-0", "combined-1", "acceptor"],
}
HELLO = ApiVersionsRequest(client_software_name="me", client_software_version="1")


@pytest.fixture(params=NAMES)
def process_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def broker(
    autojump_clock: MockClock, tmp_path: Path, process_mode: str
) -> AsyncIterator[TaskBroker]:
    pairs = [
        f"process.mode={process_mode}",
        "num.network.threads=2",
        "num.io.threads=2",
        "listeners=PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
    ]
    settings = Settings.from_sources(pairs=pairs)
    made = TaskBroker(settings, tmp_path, clock=SimulatedClock(autojump_clock), seed=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield made
        await made.stop()


async def connect(broker: TaskBroker, listener: str = "PLAINTEXT") -> SimulatedClient:
    return SimulatedClient(await broker.sources[listener].connect())


async def test_all_roles_serve_once_it_has_started(
    broker: TaskBroker, autojump_clock: MockClock, process_mode: str
) -> None:
    assert broker.names == NAMES[process_mode]
    client = await connect(broker)
    assert (await client.ask(HELLO, 4)).error_code == 0


async def test_each_listener_has_an_advertised_address(
    broker: TaskBroker, autojump_clock: MockClock
) -> None:
    ports = []
    for listener in ("PLAINTEXT", "OTHER"):
        client = await connect(broker, listener)
        response = await client.ask(MetadataRequest(topics=[]), 9)
        ports += [each.port for each in response.brokers]
    assert len(set(ports)) == 2


@pytest.mark.parametrize("name", ROLES)
async def test_killed_role_is_restarted_and_serves_again(
    broker: TaskBroker, autojump_clock: MockClock, name: str
) -> None:
    client = await connect(broker)
    topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1)
    await client.ask(CreateTopicsRequest(topics=[topic]), 7)
    before = broker.environment(name)
    broker.kill(name)
    await broker.wait_ready()
    after = broker.environment(name)
    assert (before.incarnation, after.incarnation) == (1, 2)
    assert after.random.random() != before.random.random()
    for _ in range(2):
        client = await connect(broker)
        response = await client.ask(MetadataRequest(topics=None), 9)
        assert "t" in {each.name for each in response.topics}


async def test_processor_kill_closes_its_connections(
    broker: TaskBroker, autojump_clock: MockClock
) -> None:
    clients = [await connect(broker) for _ in range(2)]
    for client in clients:
        await client.ask(HELLO, 4)
    broker.kill("processor-0")
    await wait_all_tasks_blocked()
    lost = 0
    for client in clients:
        try:
            await client.ask(HELLO, 4)
        except StreamClosed:
            lost += 1
    assert lost == 1


async def test_stopping_ends_all_clients_and_all_roles(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    made = TaskBroker(
        Settings.from_sources(), tmp_path, clock=SimulatedClock(autojump_clock), seed=1
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        client = await connect(made)
        await client.ask(HELLO, 4)
        await made.stop()
    assert await client.wait_closed() == b""


async def test_control_api_is_that_of_the_running_controller(
    broker: TaskBroker, autojump_clock: MockClock
) -> None:
    first = broker.control
    await first.faults.add(FaultRule(Observe(), name="seen"))
    assert [each.id for each in first.faults.register.views()] == ["seen"]
    broker.kill("controller")
    await broker.wait_ready()
    assert broker.control is not first


async def test_error_in_a_role_is_not_hidden(autojump_clock: MockClock, tmp_path: Path) -> None:
    (tmp_path / "config.sqlite").write_bytes(b"no database at all" * 100)
    made = TaskBroker(
        Settings.from_sources(), tmp_path, clock=SimulatedClock(autojump_clock), seed=1
    )
    with pytest.RaisesGroup(Exception, flatten_subgroups=True):
        await made.run()


async def test_role_that_ends_by_itself_ends_the_run(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    made = TaskBroker(
        Settings.from_sources(), tmp_path, clock=SimulatedClock(autojump_clock), seed=1
    )
    ended = pytest.RaisesExc(RuntimeError, match="acceptor ended by itself")
    with pytest.RaisesGroup(ended, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            made.environment("acceptor").stopping.set()

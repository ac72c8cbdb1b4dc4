"""Handles of a process that is ready, over a control API that nothing asks."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
import trio

from minibroker.testing import (
    BrokerSnapshot,
    BrokerStartError,
    ControlError,
    MiniBroker,
    SharedBrokerError,
)
from minibroker.testing.broker import Controlled


def can_connect(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except ConnectionRefusedError:
        return False
    return True


def test_broker_runs_inside_the_context_only(
    is_gone: Callable[[int], bool],
) -> None:
    with MiniBroker() as broker:
        pid, address = broker.pid, broker.bootstrap_servers
        assert can_connect(address)
        assert broker.control.get("v1", "health")["ready"]
    assert is_gone(pid)
    assert not can_connect(address)


def test_metrics_and_health_use_the_same_process_names(minibroker: MiniBroker) -> None:
    assert can_connect(minibroker.bootstrap_servers)
    with urllib.request.urlopen(f"{minibroker.control_url}/metrics") as answer:
        metrics = answer.read().decode()
    names = [process["name"] for process in minibroker.control.get("v1", "health")["processes"]]
    up = re.findall(r'minibroker_process_up\{process="(.+)"\} (.+)', metrics)
    assert sorted(up) == sorted((name, "1.0") for name in names)
    busy = re.findall(r'minibroker_process_busy_seconds_total\{process="(.+)"\} (.+)', metrics)
    assert sorted(name for name, seconds in busy if float(seconds) > 0) == sorted(names)


def test_stopped_broker_can_be_restarted(is_gone: Callable[[int], bool]) -> None:
    broker = MiniBroker()
    first = broker.start().pid
    broker.stop()
    broker.stop()
    second = broker.start().pid
    broker.stop()
    assert first != second
    assert is_gone(second)


def test_address_is_available_only_while_the_broker_runs() -> None:
    with pytest.raises(RuntimeError, match="use it as a context manager"):
        _ = MiniBroker().bootstrap_servers


def test_settings_accept_python_values(tmp_path: Path) -> None:
    settings = {"num.partitions": 3, "auto.create.topics.enable": False, "log.dirs": [tmp_path]}
    with MiniBroker(settings=settings) as broker:
        broker.control.post("v1", "topics", name="cats")
        assert len(broker.control.get("v1", "topics", "cats")["partitions"]) == 3
    assert list(tmp_path.glob("cats-*"))


def test_invalid_settings_raise_an_explained_error() -> None:
    with pytest.raises(BrokerStartError, match=r"did you mean num\.partitions\?"):
        MiniBroker(settings={"num.partition": 3}).start()


def test_occupied_port_raises_an_explained_error() -> None:
    with MiniBroker() as broker:
        other = MiniBroker(settings={"listeners": f"PLAINTEXT://{broker.bootstrap_servers}"})
        with pytest.raises(BrokerStartError, match=broker.bootstrap_servers.rpartition(":")[2]):
            other.start()


def test_topics_are_created_described_and_deleted(minibroker: MiniBroker) -> None:
    name = minibroker.create_topic("made-by-hand", 2, {"retention.ms": 60000})
    topic = minibroker.control.get("v1", "topics", name)
    assert len(topic["partitions"]) == 2
    assert topic["configs"] == {"retention.ms": "60000"}
    minibroker.delete_topic(name)
    with pytest.raises(ControlError, match="UNKNOWN_TOPIC_OR_PARTITION") as caught:
        minibroker.delete_topic(name)
    assert caught.value.status == 404


def test_own_broker_has_own_clock_and_can_be_reset() -> None:
    with MiniBroker() as broker:
        broker.create_topic("cats")
        before = broker.clock()["wall_ms"]
        assert broker.advance(3_600_000)["wall_ms"] >= before + 3_600_000
        assert broker.freeze()["frozen"]
        assert not broker.freeze(False)["frozen"]
        broker.reset()
        with pytest.raises(ControlError):
            broker.control.get("v1", "topics", "cats")


def test_log_names_the_dead_process_and_its_cause() -> None:
    with MiniBroker() as broker:
        processes = broker.control.get("v1", "health")["processes"]
        pid = next(process["pid"] for process in processes if process["name"] == "worker-0")
        os.kill(pid, signal.SIGKILL)
        died = f"minibroker: combined-0 (pid {pid}) died: signal 9 (SIGKILL)\n"
        while died not in broker.log():
            assert "signal 9" not in broker.log().replace("died: signal 9", "")


def test_connections_and_groups_can_be_inspected(minibroker: MiniBroker) -> None:
    assert {"listeners", "processors"} <= minibroker.connections().keys()
    assert isinstance(minibroker.groups(), list)
    assert isinstance(minibroker.log(), str)


async def test_trio_runs_while_a_broker_starts(is_gone: Callable[[int], bool]) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        async with MiniBroker() as broker:
            assert can_connect(broker.bootstrap_servers)
            assert broker.control_url.startswith("http://127.0.0.1:")
            assert await broker.create_topic("cats") == "cats"
            assert (await broker.control.get("v1", "topics", "cats"))["name"] == "cats"
            await broker.control.delete("v1", "topics", "cats")
            assert await broker.control.post("v1", "reset") == {"topics": 0, "groups": 0}
            assert (await broker.advance(10))["offset_ms"] >= 10
            os.kill(broker.pid, 0)
            pid = broker.pid
        nursery.cancel_scope.cancel()
    assert turns > 10
    assert is_gone(pid)


def test_asyncio_users_await_the_same_methods(is_gone: Callable[[int], bool]) -> None:
    async def use() -> int:
        async with MiniBroker() as broker:
            turns = 0

            async def turn() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            turning = asyncio.create_task(turn())
            await broker.create_topic("cats", partitions=3)
            assert (await broker.control.get("v1", "topics", "cats"))["name"] == "cats"
            assert await broker.ended() is None
            turning.cancel()
            assert turns > 0
            return broker.pid

    assert is_gone(asyncio.run(use()))


def test_cancelled_asyncio_task_leaves_no_broker(is_gone: Callable[[int], bool]) -> None:
    pids: list[int] = []

    async def use(started: asyncio.Event) -> None:
        async with MiniBroker() as broker:
            pids.append(broker.pid)
            started.set()
            await asyncio.Event().wait()

    async def main() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(use(started))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert is_gone(pids[0])


def test_killed_broker_raises_and_can_be_restarted() -> None:
    with MiniBroker() as broker:
        assert broker.ended() is None
        os.kill(broker.pid, signal.SIGKILL)
        while (ended := broker.ended()) is None:
            pass
        assert str(ended) == "it was killed by SIGKILL"
        before = broker.bootstrap_servers
        broker.restart()
        assert broker.bootstrap_servers != before
        assert broker.create_topic("cats") == "cats"


def test_broker_returns_to_a_snapshot() -> None:
    with MiniBroker() as broker:
        broker.create_topic("cats", 2)
        first = broker.snapshot()
        broker.create_topic("dogs")
        named = broker.snapshot("both")
        assert named.name == "both"
        broker.delete_topic("cats")
        for snapshot, names in ((first, {"cats"}), (named, {"cats", "dogs"})) * 2:
            broker.restore(snapshot)
            topics = broker.control.get("v1", "topics")["topics"]
            assert {topic["name"] for topic in topics if not topic["internal"]} == names
        broker.remove_snapshot(first)
        with pytest.raises(ControlError, match="NO_SUCH_SNAPSHOT"):
            broker.restore(first)


def test_shared_broker_does_not_return_to_snapshots() -> None:
    broker = MiniBroker(guarded=True)
    with pytest.raises(SharedBrokerError, match="snapshot"):
        broker.snapshot()
    with pytest.raises(SharedBrokerError, match="restore"):
        broker.restore(BrokerSnapshot("s"))


def test_namespaces_share_a_broker_and_leave_no_topic(minibroker: MiniBroker) -> None:
    with minibroker.namespace() as one, minibroker.namespace("second") as two:
        assert two.name == "second"
        assert one.bootstrap_servers != two.bootstrap_servers
        assert can_connect(one.bootstrap_servers)
        minibroker.create_topic(f"{one.name}.cats")
        found = minibroker.control.get("v1", "namespaces")["namespaces"]
        assert {each["name"] for each in found} >= {one.name, "second"}
    assert not can_connect(one.bootstrap_servers)
    topics = minibroker.control.get("v1", "topics")["topics"]
    assert f"{one.name}.cats" not in {topic["name"] for topic in topics}


async def test_trio_users_await_snapshots_and_namespaces() -> None:
    async with MiniBroker() as broker:
        snapshot = await broker.snapshot()
        async with broker.namespace() as namespace:
            assert can_connect(namespace.bootstrap_servers)
        assert not can_connect(namespace.bootstrap_servers)
        await broker.create_topic("cats")
        await broker.restore(snapshot)
        await broker.remove_snapshot(snapshot)
        with pytest.raises(ControlError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await broker.control.get("v1", "topics", "cats")


class Fake(Controlled):
    _what = "broker"
    starts = 0

    def start(self) -> Self:
        self.starts += 1
        port = 9000 + self.starts
        self._ready = {"bootstrap_servers": "a:1", "control_url": f"http://127.0.0.1:{port}"}
        return self

    def stop(self) -> None:
        self._forget_ready()


def test_handles_are_those_of_the_process_that_is_ready() -> None:
    fake = Fake()
    with fake as started:
        assert started is fake
        assert fake.bootstrap_servers == "a:1"
        first = fake.control, fake.faults, fake.journal
        assert (fake.control, fake.faults, fake.journal) == first
        assert fake.faults.control.url == fake.control_url == "http://127.0.0.1:9001"
    with fake:
        assert all(
            now is not before
            for now, before in zip((fake.control, fake.faults, fake.journal), first, strict=True)
        )
        assert fake.faults.control.url == "http://127.0.0.1:9002"


@pytest.mark.parametrize("name", ["bootstrap_servers", "control_url", "control", "faults"])
def test_nothing_can_be_used_before_the_start_and_after_the_end(name: str) -> None:
    fake = Fake()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the broker is not running"):
            getattr(fake, name)
        with fake:
            pass

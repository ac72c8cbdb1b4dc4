"""The measured peers: minibroker and others, each as a separate process.

Owns their start, end and description. It must never know the measures. Invariant: every peer is
reached over a TCP socket of this machine and runs with its own defaults, so that one client
measures all alike; data is on the same kind of storage for all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from system_tests.harness.brokers import KAFKA_JVM, RunningBroker, start_kafka, start_minibroker
from system_tests.harness.compiling import built_with_go
from system_tests.harness.jars import PROJECT, ToolchainMissing, import_path, kafka_jars
from system_tests.harness.line_process import LineProcess, ProcessEnded

MINIBROKER, INTERPRETED = "minibroker", "interpreted"
KAFKA, MOCK, KFAKE = "kafka", "librdkafka mock", "kfake"
COMPILED_TREE = PROJECT / "build" / "compiled"
"""The checkout with compiled modules: all brokers but one are started from there."""
FROM_SOURCES = {"PYTHONPATH": import_path(PROJECT)}
# librdkafka's mock lives inside a client; this client does nothing else.
MOCK_HOST = """
import sys
from confluent_kafka import Producer
host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
[broker] = host.list_topics(timeout=10).brokers.values()
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.readline()
"""


@dataclass
class Peer:
    """A running peer. `keeps_everything` is False if it throws records away to stay small."""

    name: str
    version: str
    servers: str
    pid: int
    end: Callable[[], None]
    control_url: str | None = None
    keeps_everything: bool = True


def start_peer(name: str, folder: Path) -> Peer:
    """Start one of the five; raises `ToolchainMissing` if this machine can't."""
    starts: dict[str, Callable[[Path], Peer]] = {
        MINIBROKER: partial(_minibroker, name=MINIBROKER, environment={}),
        INTERPRETED: partial(_minibroker, name=INTERPRETED, environment=FROM_SOURCES),
        KAFKA: _kafka,
        MOCK: _mock,
        KFAKE: _kfake,
    }
    return starts[name](folder)


def _ended(broker: RunningBroker) -> Callable[[], None]:
    def end() -> None:
        try:
            broker.stop()
        finally:
            broker.forget()

    return end


def _minibroker(folder: Path, name: str, environment: Mapping[str, str]) -> Peer:
    broker = start_minibroker(data_dir=folder / f"{name}-data", environment=environment)
    from minibroker import __version__

    return Peer(
        name=name,
        version=__version__,
        servers=broker.bootstrap_servers,
        pid=broker.pid,
        end=_ended(broker),
        control_url=broker.control_url,
    )


def _kafka(folder: Path) -> Peer:
    [jar] = kafka_jars().glob("kafka_*.jar")
    broker = start_kafka(folder / "kafka-data", jvm=KAFKA_JVM)
    version = jar.stem.rpartition("-")[2]
    return Peer(KAFKA, version, broker.bootstrap_servers, broker.pid, _ended(broker))


def _mock(folder: Path) -> Peer:
    version = metadata.version("confluent-kafka")
    return _listening(MOCK, version, [sys.executable, "-c", MOCK_HOST], keeps_everything=False)


def _kfake(folder: Path) -> Peer:
    source = PROJECT / "system_tests" / "benchmarks" / "kfake"
    needed = next(
        line for line in (source / "go.mod").read_text().splitlines() if "/kfake v" in line
    )
    version = needed.split()[-1].rpartition("-")[2]
    return _listening(KFAKE, version, [str(built_with_go(source))])


def _listening(
    name: str, version: str, command: list[str], *, keeps_everything: bool = True
) -> Peer:
    """Start a peer that prints its address and ends with its standard input."""
    process = LineProcess(command)
    try:
        servers = process.receive().strip()
    except ProcessEnded:
        process.close()
        raise ToolchainMissing(f"{command!r} ended before it listened") from None
    return Peer(
        name, version, servers, process.pid, process.close, keeps_everything=keeps_everything
    )

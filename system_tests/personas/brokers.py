"""A broker of any Kafka version as a process, with ZooKeeper or as a KRaft node.

Owns the release of each persona, its settings, and start and end. It must never know requests of
clients. Invariant: a broker that was returned has registered itself and answers Metadata,
and its context ends it and its ZooKeeper. Kafka's own system tests have ``KafkaService``.
"""

from __future__ import annotations

import base64
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from minibroker_protocol.messages.metadata import MetadataRequest
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, StartFailed, free_port, wait_for_port
from system_tests.harness.jars import classpath, kafka_broker_jars
from system_tests.harness.waiting import PATIENCE_S, wait_until
from system_tests.harness.zookeeper import start_zookeeper

METADATA_VERSION: Final = 4
"""A version of Metadata that all these brokers have."""

JVM: Final = (
    *("java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
    # What Kafka of before Java 16 reads of the JVM's own classes.
    *("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED"),
    *("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED"),
)


class Release(NamedTuple):
    """The release of Kafka whose facts a persona has."""

    version: str
    scala: str
    has_raft: bool
    """Whether it is started as a KRaft node, without ZooKeeper."""
    zookeeper: str | None = None
    """Another version of ZooKeeper's client, if its own does not work with this Java."""

    @property
    def title(self) -> str:
        mode = "as a KRaft node" if self.has_raft else "with ZooKeeper"
        return f"Apache Kafka {self.version} (org.apache.kafka:kafka_{self.scala}) {mode}"


RELEASES: Final[Mapping[str, Release]] = {
    "kafka-0.11": Release("0.11.0.3", "2.12", False),
    "kafka-1.1": Release("1.1.1", "2.12", False),
    "kafka-2.0": Release("2.0.1", "2.12", False, "3.4.10"),
    "kafka-2.4": Release("2.4.1", "2.13", False),
    "kafka-2.8": Release("2.8.2", "2.13", False),
    "kafka-3.3": Release("3.3.2", "2.13", True),
    "kafka-3.9": Release("3.9.1", "2.13", True),
    "kafka-4.0": Release("4.0.0", "2.13", True),
}

ONE_NODE: Final = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
}


@contextmanager
def kafka(
    release: Release, folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[RunningBroker]:
    """Start a broker and wait until it has registered."""
    jars = classpath(kafka_broker_jars(release.version, release.scala, release.zookeeper))
    chosen = {**ONE_NODE, "log.dirs": str(folder / "logs"), **(settings or {})}
    if release.has_raft:
        with _running(jars, folder, _raft_settings(jars, folder, chosen)) as broker:
            yield broker
        return
    zookeeper = start_zookeeper(folder / "zookeeper")
    try:
        port = free_port()
        address = f"PLAINTEXT://127.0.0.1:{port}"
        own = {"broker.id": "1", "zookeeper.connect": zookeeper.address, "listeners": address}
        with _running(jars, folder, {**chosen, **own}) as broker:
            yield broker
    finally:
        zookeeper.kill()


def _raft_settings(jars: str, folder: Path, chosen: Mapping[str, str]) -> dict[str, str]:
    """Write the properties of a node and format its folder."""
    port, controller_port = free_port(), free_port()
    settings = {
        **chosen,
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    properties = _write(folder, settings)
    # Kafka's command line takes an id with a leading dash for an option.
    cluster_id = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
    tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)]
    done = subprocess.run(
        [*JVM, "-cp", jars, *tool], check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    if done.returncode != 0:
        raise StartFailed(f"Kafka's storage tool failed:\n{done.stdout}{done.stderr}")
    return settings


def _write(folder: Path, settings: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    properties = folder / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return properties


@contextmanager
def _running(jars: str, folder: Path, settings: Mapping[str, str]) -> Iterator[RunningBroker]:
    properties = _write(folder, settings)
    port = int(settings["listeners"].split(",")[0].rsplit(":", 1)[1])
    command: Sequence[str] = [*JVM, "-cp", jars, "kafka.Kafka", str(properties)]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        broker = RunningBroker("kafka", f"127.0.0.1:{port}", process, output)
        try:
            wait_for_port(broker, pause_s=0.1)
            wait_until(lambda: _has_registered(broker), "a broker in Metadata", pause_s=0.1)
            yield broker
        finally:
            broker.kill()


def _has_registered(broker: RunningBroker) -> bool:
    try:
        with Client(broker.address) as client:
            return bool(client.ask(MetadataRequest(topics=[]), METADATA_VERSION).brokers)
    except OSError:
        return False

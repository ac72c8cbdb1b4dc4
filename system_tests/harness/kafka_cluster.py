"""A cluster of three nodes of Apache Kafka, small enough for two cores.

Owns their processes and settings. It must never know clients or tests. Invariant: the first node is
the controller and stays, so the cluster survives the loss of one of the others; every process that
is started here ends with `stop`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from system_tests.harness.brokers import (
    RunningBroker,
    cluster_id,
    free_port,
    kafka_settings,
    launch_kafka,
    wait_for_port,
)
from system_tests.harness.jvm import short_jvm
from system_tests.harness.kafka_tools import KafkaTools

NODES: Final = 3
MEMORY: Final = "-Xmx256m"

SETTINGS: Final = {
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": str(NODES),
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "100",
    "broker.session.timeout.ms": "6000",
    "auto.create.topics.enable": "false",
}


class KafkaCluster:
    """Three nodes; the first is broker and controller, the others are brokers."""

    def __init__(self, folder: Path, tools: KafkaTools) -> None:
        self._tools = tools
        self.nodes: list[RunningBroker] = []
        self._properties: list[Path] = []
        controller_port, identity = free_port(), cluster_id()
        try:
            for node_id in range(1, NODES + 1):
                self._launch(folder / f"node-{node_id}", node_id, controller_port, identity)
            for node in self.nodes:
                wait_for_port(node)
        except BaseException:
            self.stop()
            raise

    def _launch(self, data_dir: Path, node_id: int, controller_port: int, identity: str) -> None:
        port = free_port()
        settings = {
            **kafka_settings(data_dir, port, controller_port),
            **SETTINGS,
            "node.id": str(node_id),
        }
        is_controller = node_id == 1
        if not is_controller:
            settings["process.roles"] = "broker"
            settings["listeners"] = settings["advertised.listeners"]
        data_dir.mkdir(parents=True)
        properties = data_dir.with_suffix(".properties")
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        done = self._tools.run(
            *["kafka.tools.StorageTool", "format", "-t", identity, "-c", str(properties)],
            *(["--standalone"] if is_controller else ["--no-initial-controllers"]),
        )
        assert done.code == 0, done.lines
        self._properties.append(properties)
        self.nodes.append(launch_kafka(properties, port, jvm=short_jvm(MEMORY)))

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes."""
        return ",".join(node.bootstrap_servers for node in self.nodes)

    def node(self, node_id: int) -> RunningBroker:
        """A node by its id."""
        return self.nodes[node_id - 1]

    def restart(self, node_id: int) -> None:
        """Start a node that has ended again, at its address."""
        node = self.node(node_id)
        node.forget()
        self.nodes[node_id - 1] = restarted = launch_kafka(
            self._properties[node_id - 1], node.address[1], jvm=short_jvm(MEMORY)
        )
        wait_for_port(restarted)

    def stop(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.forget()

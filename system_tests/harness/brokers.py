"""Brokers as operating-system processes: minibroker and one node of Apache Kafka.

Owns start, readiness, stop and kill. It must never know clients or tests. Invariant: a broker
started here can be ended, with all its child processes, by `stop()` or `kill()`, and a broker that
does not start is reported with its output. Kafka runs as a KRaft node that is broker and
controller, as in its own quick start.
"""

from __future__ import annotations

import base64
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Self

from minibroker.testing.failures import FailureWarnings
from system_tests.harness.jars import classpath, kafka_jars
from system_tests.harness.jvm import ERRORS, short_jvm
from system_tests.harness.waiting import PATIENCE_S, wait_until

# What Kafka's own start script gives the JVM, and log4j's part left out.
KAFKA_JVM: Final = (
    "java",
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)


class StartFailed(Exception):
    """A broker ended, or was silent, before it was ready; the text contains its output."""


@dataclass
class RunningBroker:
    """A broker that answered. `control_url` is None for Kafka."""

    kind: str
    bootstrap_servers: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    data_dir: Path | None = None
    control_url: str | None = None
    failures: FailureWarnings = field(default_factory=FailureWarnings)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.bootstrap_servers.split(",")[0].rsplit(":", 1)
        return host, int(port)

    @property
    def pid(self) -> int:
        return self.process.pid

    def printed(self) -> str:
        return _content(self.output)

    def stop(self, *, within_s: float = 30.0) -> int:
        """SIGTERM, wait, and return the exit status; a broker that stays is killed.

        Warns (`BrokerFailed`), which is an error in tests, if a process ended by itself.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(within_s)
        finally:
            self.kill()
        self.check()
        return status

    def check(self) -> None:
        """Warn (`BrokerFailed`) of each process that has ended by itself since the last call."""
        if not self.output.closed:
            self.failures.warn(self.printed())

    def kill(self) -> None:
        """Send SIGKILL to the process itself only: its child processes must notice by
        themselves.
        """
        self.process.kill()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Stop and forget the broker; without an error, assert that it printed no traceback."""
        try:
            self.stop()
            # Whatever a test or a client did: a traceback is never right.
            found = self.kind == "minibroker" and "Traceback" in self.printed()
            assert kind is not None or not found, self.printed()[-4000:]
        finally:
            self.forget()

    def forget(self) -> None:
        """Kill what is left, and close the file of its output after a last `check`."""
        self.kill()
        try:
            self.check()
        finally:
            self.output.close()


def start_minibroker(
    *arguments: str,
    data_dir: Path | None = None,
    settings: Mapping[str, str] | None = None,
    listener: str = "PLAINTEXT://127.0.0.1:0",
    environment: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
) -> RunningBroker:
    """Start `minibroker start --json` with this interpreter and wait for its line.

    `wrapper` is a command that runs the one after it in its own process, as `env` does.
    """
    command = [
        *wrapper,
        sys.executable,
        "-m",
        "minibroker",
        "start",
        "--listener",
        listener,
        "--json",
    ]
    if data_dir is not None:
        command += ["--data-dir", str(data_dir)]
    for name, value in (settings or {}).items():
        command += ["--set", f"{name}={value}"]
    output = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the broker)
    process = subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=output,
        env={**os.environ, **(environment or {})},
    )
    try:
        ready = _first_line(process, output)
    except StartFailed:
        assert process.stdout is not None
        process.stdout.close()
        output.close()
        raise
    return RunningBroker(
        kind="minibroker",
        bootstrap_servers=ready["bootstrap_servers"],
        process=process,
        output=output,
        data_dir=data_dir,
        control_url=ready["control_url"],
    )


def _first_line(process: subprocess.Popen[bytes], output: IO[bytes]) -> dict[str, str]:
    assert process.stdout is not None
    deadline = time.monotonic() + PATIENCE_S
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        readable, _, _ = select.select([process.stdout], [], [], max(left, 0))
        piece = os.read(process.stdout.fileno(), 65536) if readable else b""
        if not piece:
            break
        line += piece
    else:
        ready: dict[str, str] = json.loads(line.splitlines()[0])
        if ready.get("event") == "ready":
            return ready
    process.kill()
    raise StartFailed(
        f"minibroker was not ready (status {process.wait()}) and printed:\n"
        f"{line.decode(errors='replace')}{_content(output)}"
    )


def kafka_settings(data_dir: Path, port: int, controller_port: int) -> dict[str, str]:
    """Return the required settings of a single KRaft node; everything else is Kafka's default."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data_dir),
        # One node can hold one replica only.
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }


def format_kafka(
    data_dir: Path, *, settings: Mapping[str, str] | None = None, plugins: str = ""
) -> tuple[Path, int]:
    """Write a properties file, format `data_dir` with Kafka's tool; return the file and port."""
    data_dir.mkdir(parents=True, exist_ok=True)
    port, controller_port = free_port(), free_port()
    properties = data_dir.parent / f"{data_dir.name}.properties"
    chosen = {**kafka_settings(data_dir, port, controller_port), **(settings or {})}
    properties.write_text("".join(f"{name}={value}\n" for name, value in chosen.items()))
    done = subprocess.run(
        [
            *_java(plugins, short_jvm("-Xmx1G")),
            *["kafka.tools.StorageTool", "format", "--standalone"],
            *["-t", cluster_id(), "-c", str(properties)],
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if done.returncode != 0:
        raise StartFailed(f"Kafka's storage tool failed:\n{done.stdout}{done.stderr}")
    return properties, port


def launch_kafka(
    properties: Path, port: int, *, plugins: str = "", jvm: Sequence[str] = KAFKA_JVM
) -> RunningBroker:
    """Start the node on a formatted folder, without waiting for it.

    `plugins` is the class path of classes that the properties name, `jvm` the command of a JVM.
    In one that starts faster, Kafka rejects two damaged batches that it accepts otherwise.
    """
    output = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the broker)
    process = subprocess.Popen(
        [*_java(plugins, jvm), "kafka.Kafka", str(properties)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    return RunningBroker(
        kind="kafka", bootstrap_servers=f"127.0.0.1:{port}", process=process, output=output
    )


def start_kafka(
    data_dir: Path,
    *,
    settings: Mapping[str, str] | None = None,
    plugins: str = "",
    jvm: Sequence[str] = KAFKA_JVM,
) -> RunningBroker:
    """Format `data_dir`, start one node on it and wait until it accepts connections."""
    properties, port = format_kafka(data_dir, settings=settings, plugins=plugins)
    broker = launch_kafka(properties, port, plugins=plugins, jvm=jvm)
    broker.data_dir = data_dir
    wait_for_port(broker)
    return broker


def start_with_listener(
    kind: str, protocol: str, folder: Path, settings: Mapping[str, str]
) -> tuple[RunningBroker, tuple[str, int]]:
    """Start Kafka or minibroker with a second listener of a protocol; return also its address."""
    if kind == "minibroker":
        broker = start_minibroker("--listener", f"{protocol}://127.0.0.1:0", settings=settings)
        host, _, port = broker.bootstrap_servers.split(",")[1].partition(":")
        return broker, (host, int(port))
    plain, control, secured = free_port(), free_port(), free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{plain},{protocol}://127.0.0.1:{secured}"
    ports = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{control}",
        "advertised.listeners": listeners,
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{control}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        f"{protocol}:{protocol}",
    }
    properties, _ = format_kafka(folder / "data", settings={**settings, **ports})
    broker = launch_kafka(properties, plain)
    wait_for_port(broker)
    return broker, ("127.0.0.1", secured)


def wait_for_port(broker: RunningBroker, *, pause_s: float = 0.02) -> None:
    def answering() -> bool:
        if broker.process.poll() is not None:
            raise StartFailed(f"{broker.kind} ended at start and printed:\n{broker.printed()}")
        with socket.socket() as probe:
            return probe.connect_ex(broker.address) == 0

    wait_until(answering, f"{broker.kind} to listen", within_s=PATIENCE_S, pause_s=pause_s)


SERVERS_PORTS: Final = range(10_000, 32_000)
"""Below the ports that Linux assigns to connecting sockets.

One of those may be taken while a server is down, even by its own client, which connects to itself
when it gets the port that it connects to.
"""


WORKERS_MAX: Final = 16
"""Test processes that run at the same time and take different ports."""

_given_ports: Final[set[int]] = set()


def free_port() -> int:
    """Return a port that a server can listen on, also after a restart; each is returned once.

    Test processes of pytest-xdist do not get each other's: one may be free because its server
    restarts.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = SERVERS_PORTS[worker % WORKERS_MAX :: WORKERS_MAX]
    for port in random.SystemRandom().sample(own, 100):
        if port in _given_ports:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given_ports.add(port)
            return port
    raise StartFailed("of a hundred ports none is free")


def _java(plugins: str = "", jvm: Sequence[str] = KAFKA_JVM) -> list[str]:
    classes = plugins or classpath(kafka_jars())
    return [*jvm, ERRORS, "-cp", classes]


def cluster_id() -> str:
    """Return a random id for a new cluster."""
    # Kafka's command line takes an id with a leading dash for an option.
    return "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def _content(file: IO[bytes]) -> str:
    """Read a file that a process is writing, without moving the offset it shares with us."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")

"""ZooKeeper servers as processes: one alone, or three that elect a leader.

Owns configuration, start, readiness, kill and restart on the same data. It must never know clients.
Invariant: a returned server answers, and its starter can end it. Kafka's own system tests have
`ZookeeperService`.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from system_tests.harness.brokers import StartFailed, free_port
from system_tests.harness.jars import classpath, zookeeper_jars
from system_tests.harness.waiting import PATIENCE_S, wait_until

TICK_MS = 200
# A server that is only just starting may take a command and never answer it.
COMMAND_PATIENCE_S = 0.3

JVM = [
    *["java", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
    *["-Dzookeeper.forceSync=no", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"],
]


@dataclass
class ZooKeeper:
    """One server, which may be up or down."""

    folder: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    output: IO[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start it, without waiting for an answer."""
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the server)
        self.process = subprocess.Popen(
            [
                *[*JVM, "-cp", classpath(zookeeper_jars())],
                *["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.configured())],
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )

    def configured(self) -> Path:
        """Write its file of settings and return the path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        chosen = {
            "tickTime": str(TICK_MS),
            "initLimit": "50",
            "syncLimit": "25",
            "minSessionTimeout": "400",
            "maxSessionTimeout": "60000",
            "maxClientCnxns": "0",
            "dataDir": str(self.folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            **self.settings,
        }
        path = self.folder / "zoo.cfg"
        path.write_text("".join(f"{name}={value}\n" for name, value in chosen.items()))
        return path

    def mode(self) -> str | None:
        """Return standalone, leader or follower; None while it does not serve."""
        if self.process is not None and self.process.poll() is not None:
            raise StartFailed(f"ZooKeeper ended and printed:\n{self.printed()}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), COMMAND_PATIENCE_S) as probe:
                probe.sendall(b"srvr")
                answer = b""
                while piece := probe.recv(4096):
                    answer += piece
        except OSError:
            return None
        modes = [line for line in answer.decode().splitlines() if line.startswith("Mode: ")]
        return modes[0].removeprefix("Mode: ") if modes else None

    def wait(self) -> None:
        wait_until(self.mode, "ZooKeeper to serve", within_s=PATIENCE_S)

    def start(self) -> None:
        self.launch()
        self.wait()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None
        if self.output is not None:
            self.output.close()
            self.output = None

    def freeze(self, frozen: bool = True) -> None:
        """Let it neither answer nor hang up, or go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def printed(self) -> str:
        if self.output is None:
            return ""
        self.output.seek(0)
        return self.output.read().decode(errors="replace")


def start_zookeeper(folder: Path, settings: Mapping[str, str] | None = None) -> ZooKeeper:
    server = ZooKeeper(folder, free_port(), settings or {})
    server.start()
    return server


def start_ensemble(folder: Path, size: int = 3) -> list[ZooKeeper]:
    """Start servers that know each other, and wait until all serve."""
    peers = {
        f"server.{number}": f"127.0.0.1:{free_port()}:{free_port()}"
        for number in range(1, size + 1)
    }
    servers = []
    for number in range(1, size + 1):
        server = ZooKeeper(folder / str(number), free_port(), peers)
        data = server.folder / "data"
        data.mkdir(parents=True)
        (data / "myid").write_text(str(number))
        server.launch()
        servers.append(server)
    for server in servers:
        server.wait()
    return servers


def addresses(servers: Sequence[ZooKeeper]) -> str:
    return ",".join(server.address for server in servers)

"""``MiniProxy``: a proxy in front of a Kafka cluster, for a test.

Owns the process of the proxy. It must never import the broker into the test's process. Invariant:
the process ends with the context, and with the test's process at the latest, because it reads from
it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import IO, Any, Final, Self

from minibroker.testing.control import Control
from minibroker.testing.faults import Faults
from minibroker.testing.journal import RecordedJournal

STOP_SECONDS_MAX: Final = 10.0
MODULE: Final = "minibroker.testing.proxy_process"
PROGRAM: Final = f"from {MODULE} import main; main()"


class ProxyNotStarted(RuntimeError):
    """A proxy did not start; the message says why."""


class MiniProxy:
    """A proxy for a test: ``with MiniProxy("kafka:9092") as proxy: connect_to(proxy...)``.

    ``upstream`` are the bootstrap servers of any Kafka cluster; by default, ports are free ones.
    ``command_config`` is a client properties file with the TLS settings for the cluster.
    """

    def __init__(
        self,
        upstream: str,
        *,
        listener: str = "127.0.0.1:0",
        command_config: str | os.PathLike[str] | None = None,
    ) -> None:
        config = None if command_config is None else os.fspath(command_config)
        self._options = {"upstream": upstream, "listener": listener, "command_config": config}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._ready: dict[str, Any] = {}
        self._control: Control | None = None
        self._faults: Faults | None = None
        self._journal: RecordedJournal | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Start, and wait until clients can connect. Raises `ProxyNotStarted`."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - read after the process has ended
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(self._options).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"text": self.log()}
        if answer.get("event") != "ready":
            self.stop()
            raise ProxyNotStarted(f"the proxy did not start: {answer['text']}")
        self._ready = answer
        return self

    def stop(self) -> None:
        """Stop, and wait until the process has ended; a second call does nothing."""
        if self._control is not None:
            self._control.close()
            self._control = self._faults = self._journal = None
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
        self._ready = {}

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for any Kafka client."""
        return str(self._ready_value("bootstrap_servers"))

    @property
    def control_url(self) -> str:
        """The HTTP control API."""
        return str(self._ready_value("control_url"))

    @property
    def control(self) -> Control:
        """Calls to the control API that have no method here."""
        if self._control is None:
            self._control = Control(self.control_url)
        return self._control

    @property
    def faults(self) -> Faults:
        """Rules that make the cluster seem to misbehave."""
        if self._faults is None:
            self._faults = Faults(self.control_url, self.control)
        return self._faults

    @property
    def journal(self) -> RecordedJournal:
        """What happened: ``with proxy.journal as journal: ...; journal.assert_happened(...)``."""
        if self._journal is None:
            self._journal = RecordedJournal(self.control_url, self.control)
        return self._journal

    def log(self) -> str:
        """The standard error of the proxy."""
        if self._log is None:
            return ""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _ready_value(self, key: str) -> object:
        if not self._ready:
            raise RuntimeError("the proxy is not running: use it as a context manager, or start()")
        return self._ready[key]

"""``MiniProxy``: a proxy in front of a Kafka cluster, for a test.

Owns the process of the proxy. It must never import the broker into the test's process. Invariant:
the process ends with the context, and with the test's process at the latest, because it reads from
it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, Self

from minibroker.python_command import python_command
from minibroker.testing.broker import Controlled

if TYPE_CHECKING:
    from minibroker.secured import Secured

STOP_SECONDS_MAX: Final = 10.0
MODULE: Final = "minibroker.testing.proxy_process"
PROGRAM: Final = f"from {MODULE} import main; main()"


class ProxyNotStarted(RuntimeError):
    """A proxy did not start; the message says why."""


class MiniProxy(Controlled):
    """A proxy for a test: ``with MiniProxy("kafka:9092") as proxy: connect_to(proxy...)``.

    ``upstream`` are the bootstrap servers of any Kafka cluster; by default, ports are free ones.
    ``command_config`` is a client properties file with the TLS settings for the cluster, and
    ``tls=True`` or "mutual" lets clients use TLS with the proxy: `client_config` has what they
    need. SASL passes.
    """

    _what = "proxy"

    def __init__(
        self,
        upstream: str,
        *,
        listener: str = "127.0.0.1:0",
        command_config: str | os.PathLike[str] | None = None,
        tls: bool | Literal["mutual"] = False,
    ) -> None:
        super().__init__()
        config = None if command_config is None else os.fspath(command_config)
        self._options = {"upstream": upstream, "listener": listener, "command_config": config}
        self._tls = tls
        self._secured: Secured | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def start(self) -> Self:
        """Start, and wait until clients can connect. Raises `ProxyNotStarted`."""
        if self._tls:
            self._secured = self._create_certificates()
        folder = None if self._secured is None else str(self._secured.folder)
        options = json.dumps({**self._options, "security_dir": folder})
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - read after the process has ended
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            python_command(PROGRAM),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(options.encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"text": self.log()}
        if answer.get("event") != "ready":
            self.stop()
            raise ProxyNotStarted(f"the proxy did not start: {answer['text']}")
        self._ready = answer
        return self

    def _create_certificates(self) -> Secured:
        from minibroker.secured import hosts_of, secured, write_files

        made = secured(Path("."), tls=self._tls)
        made = made._replace(folder=Path(tempfile.mkdtemp(prefix="minibroker-secrets-")))
        return write_files(made, hosts_of([f"SSL://{self._options['listener']}"]))

    def client_config(self, library: str = "confluent-kafka") -> dict[str, Any]:
        """The configuration of a client for this proxy, with certificates.

        ``library`` is as for `MiniBroker.client_config`. With SASL, a client has its own mechanism
        and user, and the protocol SASL_SSL.
        """
        from minibroker.client.configs import client_config
        from minibroker.secured import secured

        made = self._secured or secured(Path("."))
        return client_config(made, library, self.bootstrap_servers)

    def stop(self) -> None:
        """Stop, and wait until the process has ended; a second call does nothing."""
        self._forget_ready()
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
        if self._secured is not None:
            shutil.rmtree(self._secured.folder, ignore_errors=True)
            self._secured = None

    def log(self) -> str:
        """The standard error of the proxy."""
        if self._log is None:
            return ""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

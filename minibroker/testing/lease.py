"""A test process's side of a fork server: starts one if there is none, and holds leases.

Owns the name by which processes of one run find the same fork server. It must never import the
broker, which would slow the test process down. Invariant: of all processes that use a name at the
same time, exactly one starts a fork server, because only one can bind the name.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, Final, NamedTuple

from minibroker.python_command import python_command
from minibroker.runtime.system import listen_nameless, nameless_address

READY_SECONDS_MAX: Final = 120.0
"""As long as a broker waits for its processes."""
STOP_SECONDS_MAX: Final = 10.0
CONNECT_ATTEMPTS_MAX: Final = 200
CONNECT_PAUSE_S: Final = 0.005
"""A name that is bound but not listened to belongs to a fork server that is starting or ending."""
BACKLOG: Final = 128

# As ``-m``, but quicker: without ``runpy``, and no garbage is collected while modules are imported.
MODULE: Final = "minibroker.testing.fork_server"
PROGRAM: Final = f"import gc; gc.disable(); from {MODULE} import main; main()"


class BrokerStartError(RuntimeError):
    """A broker did not start; the message contains its standard error."""


class Ended(NamedTuple):
    """A broker that ended: its exit code (negative: the signal) and the end of its log.

    The code is None if the fork server ended too.
    """

    code: int | None
    log: str

    def __str__(self) -> str:
        if self.code is None:
            return "it ended together with the fork server"
        if self.code < 0:
            return f"it was killed by {signal.Signals(-self.code).name}"
        return f"it ended with exit code {self.code}"


class ForkServerAddress:
    """Address of the fork server of this run; starts it when it is first needed."""

    def __init__(self, run_id: str | None = None, command: Sequence[str] | None = None) -> None:
        self.run_id = run_id or uuid.uuid4().hex
        self._command = command or python_command(PROGRAM)
        self._name = nameless_address(f"minibroker-{os.getuid()}-{self.run_id}")
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def connect(self) -> socket.socket:
        """Connect to the fork server, starting it if needed; does not wait until it is ready."""
        for _ in range(CONNECT_ATTEMPTS_MAX):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(self._name)
            except (ConnectionRefusedError, FileNotFoundError):
                connection.close()
                if not self._spawn():
                    time.sleep(CONNECT_PAUSE_S)
                continue
            return connection
        raise BrokerStartError(f"the fork server does not start: {self.log()}")

    def preload(self) -> None:
        """Let the fork server import the broker, which is likely to be needed soon."""
        if self._process is None:
            self.connect().close()

    @property
    def pid(self) -> int | None:
        """Process id of the fork server, if this process started it."""
        return None if self._process is None else self._process.pid

    def log(self) -> str:
        """Standard error of a fork server that this process started."""
        if self._log is None:
            return ""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _spawn(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            if not listen_nameless(listener, self._name, BACKLOG):
                return False  # another process of this run was faster
            self.close()  # an earlier fork server of this process has ended
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - read when a lease fails
            # Its standard input is a pipe whose other end is closed when this process ends, however
            # it ends; its own session protects it from the terminal's Ctrl-C.
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*self._command, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
            return True

    def close(self) -> None:
        """Release the fork server: it ends by itself when no lease on its brokers is open."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            if self._process.poll() is None:
                self._process.returncode = 0  # it may outlive this process, which is no error
        if self._log is not None:
            self._log.close()
        self._process = self._log = None


_FORK_SERVERS: Final[dict[int, ForkServerAddress]] = {}


def fork_server_of_process(run_id: str | None = None) -> ForkServerAddress:
    """Return the fork server of this process; only the first call uses ``run_id``.

    A child that this process forks gets its own fork server.
    """
    pid = os.getpid()
    if pid not in _FORK_SERVERS:
        _FORK_SERVERS[pid] = fork_server = ForkServerAddress(run_id)
        atexit.register(fork_server.close)
    return _FORK_SERVERS[pid]


class Lease:
    """A lease on one broker, which ends when its last lease is closed."""

    def __init__(
        self, fork_server: ForkServerAddress, settings: Mapping[str, str], share: str | None = None
    ) -> None:
        self._fork_server = fork_server
        self._request = {"ask": "broker", "settings": dict(settings), "share": share}
        self._ended: Ended | None = None
        self._open()

    def wait_ready(self) -> dict[str, Any]:
        """Return the broker's message when it is ready. Raises `BrokerStartError` with its log."""
        answer = self._answer(READY_SECONDS_MAX)
        if not answer:
            self.close()
            self._open()  # that fork server was ending, because its parent had; this is a new one
            answer = self._answer(READY_SECONDS_MAX)
        if answer.get("event") == "ready":
            return answer
        text = answer.get("text") or self._fork_server.log() or "it printed nothing"
        self.close()
        raise BrokerStartError(f"the broker did not start:\n{text}")

    def log(self) -> str:
        """Return the end of the broker's standard error."""
        if self.ended() is None:
            self._ask({"ask": "log"})
            answer = self._answer(STOP_SECONDS_MAX)
            if answer.get("event") == "log":
                return str(answer["text"])
            self._note_end(answer)
        assert self._ended is not None
        return self._ended.log

    def ended(self) -> Ended | None:
        """Return a description of the broker's end, if it ended by itself; does not wait."""
        if self._ended is None and select.select([self._connection], [], [], 0)[0]:
            self._note_end(self._answer(STOP_SECONDS_MAX))
        return self._ended

    def _note_end(self, answer: Mapping[str, Any]) -> None:
        self._ended = Ended(answer.get("code"), str(answer.get("text") or self._fork_server.log()))

    def stop(self) -> Ended | None:
        """Close the lease, and wait for the broker's end if there is no other lease.

        Returns that end, or an earlier one.
        """
        with suppress(OSError):  # the fork server may have ended, and the broker with it
            self._connection.shutdown(socket.SHUT_WR)
            while answer := self._answer(STOP_SECONDS_MAX):
                if answer.get("event") == "stopped":
                    self._note_end(answer)
        self.close()
        return self._ended

    def close(self) -> None:
        """Close the lease without waiting."""
        self._reader.close()
        self._connection.close()

    def _open(self) -> None:
        self._connection = self._fork_server.connect()
        self._reader = self._connection.makefile("rb")
        self._ask(self._request)

    def _ask(self, request: Mapping[str, Any]) -> None:
        with suppress(OSError):  # reading the answer fails too, and reports the reason
            self._connection.sendall(json.dumps(request).encode() + b"\n")

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        """Return the next message; empty when the fork server has ended the lease."""
        self._connection.settimeout(timeout_s)
        try:
            line = self._reader.readline()
        except TimeoutError:
            return {"text": f"it was not ready within {timeout_s:.0f} s"}
        except ConnectionResetError:
            line = b""
        answer: dict[str, Any] = json.loads(line) if line else {}
        return answer

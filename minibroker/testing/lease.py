"""A test process's side of a keeper: starts one where there is none, and holds leases.

Owns the name by which processes of one run find the same keeper; it must never import the broker,
whose imports the test process should not pay for. Invariant: of all processes that ask for the
same name at once, exactly one starts a keeper, because only one can bind the name.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, Final, NamedTuple

READY_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 10.0
CONNECT_ATTEMPTS_MAX: Final = 200
CONNECT_PAUSE_S: Final = 0.005
"""A name that is bound and not listened to is a keeper about to begin, or to end."""
BACKLOG: Final = 128


COMMAND: Final = (sys.executable, "-m", "minibroker.testing.keeper")


class BrokerStartError(RuntimeError):
    """A broker did not start; the message holds what it wrote to standard error."""


class Ended(NamedTuple):
    """A broker that ended by itself: its exit code (negative: the signal) and its log's end.

    The code is None if the process that keeps brokers ended, too.
    """

    code: int | None
    log: str

    def __str__(self) -> str:
        if self.code is None:
            return "it ended together with the process that keeps it"
        if self.code < 0:
            return f"it was killed by {signal.Signals(-self.code).name}"
        return f"it ended with exit code {self.code}"


class KeeperAddress:
    """Where the keeper of this run listens; starts it when it is first needed."""

    def __init__(self, run_id: str | None = None, command: Sequence[str] = COMMAND) -> None:
        self.run_id = run_id or uuid.uuid4().hex
        self._command = command
        self._name = f"\0minibroker-{os.getuid()}-{self.run_id}"
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def connect(self) -> socket.socket:
        """A connection to the keeper, which is started at need; does not wait for it."""
        for _ in range(CONNECT_ATTEMPTS_MAX):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(self._name)
            except ConnectionRefusedError:
                connection.close()
                if not self._spawn():
                    time.sleep(CONNECT_PAUSE_S)
                continue
            return connection
        raise BrokerStartError(f"the process that keeps brokers does not start: {self.log()}")

    def warm(self) -> None:
        """Have the keeper start importing the broker, which is likely to be wanted soon."""
        if self._process is None:
            self.connect().close()

    @property
    def pid(self) -> int | None:
        """The keeper's process, where this process started it."""
        return None if self._process is None else self._process.pid

    def log(self) -> str:
        """What a keeper started by this process wrote to standard error."""
        if self._log is None:
            return ""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _spawn(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                listener.bind(self._name)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return False  # another process of this run was faster
                raise
            listener.listen(BACKLOG)
            self.close()  # an earlier keeper of this process has ended
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - read when a lease fails
            # Its standard input is a pipe whose other end dies with this process, however it
            # dies; its own session keeps it out of reach of the terminal's Ctrl-C.
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
        """Let the keeper go: it ends by itself when nobody holds a broker of it any more."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            if self._process.poll() is None:
                self._process.returncode = 0  # it may outlive this process, and that is no mistake
        if self._log is not None:
            self._log.close()
        self._process = self._log = None


_KEEPERS: Final[dict[int, KeeperAddress]] = {}


def keeper_of_process(run_id: str | None = None) -> KeeperAddress:
    """The keeper that everything in this process uses; ``run_id`` counts at the first call.

    A child that this process forks gets a keeper of its own.
    """
    pid = os.getpid()
    if pid not in _KEEPERS:
        _KEEPERS[pid] = keeper = KeeperAddress(run_id)
        atexit.register(keeper.close)
    return _KEEPERS[pid]


class Lease:
    """The hold on one broker; closing it, or dying, lets the broker end."""

    def __init__(
        self, keeper: KeeperAddress, settings: Mapping[str, str], share: str | None = None
    ) -> None:
        self._keeper = keeper
        self._request = {"ask": "broker", "settings": dict(settings), "share": share}
        self._ended: Ended | None = None
        self._open()

    def wait_ready(self) -> dict[str, Any]:
        """What the broker said when it was ready; `BrokerStartError` with its log otherwise."""
        answer = self._answer(READY_SECONDS_MAX)
        if not answer:
            self.close()
            self._open()  # that keeper was about to end, as its parent had; this is a new one
            answer = self._answer(READY_SECONDS_MAX)
        if answer.get("event") == "ready":
            return answer
        text = answer.get("text") or self._keeper.log() or "it said nothing"
        self.close()
        raise BrokerStartError(f"the broker did not start:\n{text}")

    def log(self) -> str:
        """The end of what the broker wrote to standard error so far."""
        if self.ended() is None:
            self._ask({"ask": "log"})
            answer = self._answer(STOP_SECONDS_MAX)
            if answer.get("event") == "log":
                return str(answer["text"])
            self._note_end(answer)
        assert self._ended is not None
        return self._ended.log

    def ended(self) -> Ended | None:
        """How the broker ended, if it did so by itself; does not wait."""
        if self._ended is None and select.select([self._connection], [], [], 0)[0]:
            self._note_end(self._answer(STOP_SECONDS_MAX))
        return self._ended

    def _note_end(self, answer: Mapping[str, Any]) -> None:
        self._ended = Ended(answer.get("code"), str(answer.get("text") or self._keeper.log()))

    def stop(self) -> None:
        """Give the broker back, and wait for its end if nobody else holds it."""
        with suppress(OSError):  # the keeper may be gone, and the broker with it
            self._connection.shutdown(socket.SHUT_WR)
            while self._answer(STOP_SECONDS_MAX):
                pass
        self.close()

    def close(self) -> None:
        """Give the broker back without waiting."""
        self._reader.close()
        self._connection.close()

    def _open(self) -> None:
        self._connection = self._keeper.connect()
        self._reader = self._connection.makefile("rb")
        self._ask(self._request)

    def _ask(self, request: Mapping[str, Any]) -> None:
        with suppress(OSError):  # the answer will not come either, and says why
            self._connection.sendall(json.dumps(request).encode() + b"\n")

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        """The next message; empty when the keeper has ended the lease."""
        self._connection.settimeout(timeout_s)
        try:
            line = self._reader.readline()
        except TimeoutError:
            return {"text": f"it was not ready within {timeout_s:.0f} s"}
        except ConnectionResetError:
            line = b""
        answer: dict[str, Any] = json.loads(line) if line else {}
        return answer

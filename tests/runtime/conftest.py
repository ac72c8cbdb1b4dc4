"""Supervisors in their own processes, for tests of both sides of the fork.

A scenario is code that defines `children` and may change `options`. The supervisor's events and the
roles' output are JSON lines; every wait for a line is bounded.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 120.0
DRAIN_S = 500.0  # Longer than any wait here: no role is killed because the machine is busy.
ROOT = Path(__file__).parents[2]

PROLOGUE = """
import gc, json, os, random, select, signal, sys, threading
from minibroker.runtime.supervisor import ChildSpec
from minibroker.runtime.restarts import RestartPolicy
from minibroker.runtime.supervisor import supervise

def say(**line):
    os.write(1, json.dumps(line).encode() + b"\\n")

def report(event):
    say(event=event.kind.value, name=event.name, pid=event.pid,
        incarnation=event.incarnation, text=event.text)

def serve(life):
    "Gets ready, then waits for SIGTERM or for the supervisor's death."
    ended_read, ended_write = os.pipe()
    os.set_blocking(ended_write, False)
    # Python runs no handler for a signal that arrives just before `select` blocks.
    signal.set_wakeup_fd(ended_write)
    signal.signal(signal.SIGTERM, lambda *_: None)
    life.ready()
    select.select([ended_read, life.lifeline_fd], [], [])
    say(event="left", name=life.name, pid=os.getpid())

def stuck(life):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    life.ready()
    while True:
        signal.pause()

options = {"stop_groups": [], "drain_seconds": DRAIN_S}
"""

EPILOGUE = """
sys.exit(supervise(
    children, on_ready=lambda: say(event="all ready", name=""), on_event=report, **options
))
"""


class Supervised:
    """A supervisor in a process of its own, and the lines that came out of it."""

    def __init__(self, scenario: str) -> None:
        code = f"DRAIN_S = {DRAIN_S}" + PROLOGUE + textwrap.dedent(scenario) + EPILOGUE
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # A fork could repeat buffered output.
            env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
        )
        self.seen: list[dict[str, Any]] = []
        self._rest = b""

    def lines(self) -> Iterator[dict[str, Any]]:
        """Return new lines until the last process that could write has ended."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while True:
            while b"\n" in self._rest:
                text, self._rest = self._rest.split(b"\n", 1)
                self.seen.append(json.loads(text))
                yield self.seen[-1]
            ready = select.select([fd], [], [], PATIENCE_S)[0]
            assert ready, f"nothing more within {PATIENCE_S} s after {self.seen}"
            received = os.read(fd, 65536)
            if not received:
                return
            self._rest += received

    def until(self, event: str, name: str = "") -> dict[str, Any]:
        for line in self.lines():
            if line["event"] == event and line["name"] == name:
                return line
        raise AssertionError(f"no {event!r} of {name!r} in {self.seen}: {self.errors()}")

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def end(self) -> tuple[int, list[tuple[str, str]], str]:
        """Return exit status, all (event, name), and the text on stderr."""
        for _ in self.lines():
            pass
        errors = self.errors()
        status = self.process.wait(PATIENCE_S)
        return status, [(line["event"], line["name"]) for line in self.seen], errors


@pytest.fixture
def run_supervised() -> Iterator[Callable[[str], Supervised]]:
    started: list[Supervised] = []

    def start(scenario: str) -> Supervised:
        started.append(Supervised(scenario))
        return started[-1]

    yield start
    for supervised in started:
        with suppress(ProcessLookupError):
            os.killpg(supervised.process.pid, signal.SIGKILL)
        supervised.process.wait(PATIENCE_S)
        for stream in (supervised.process.stdout, supervised.process.stderr):
            assert stream is not None
            stream.close()


Run = Callable[[str], Supervised]

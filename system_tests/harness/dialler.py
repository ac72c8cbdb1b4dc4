"""A process that connects as fast as it can, from many addresses: ``dialler.c``.

Owns the program's arguments and its output as plain data. It must never know what a broker may do
with so many connections. Invariant: a failed run raises with the program's output.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from system_tests.harness.compiling import compiled

SOURCE = Path(__file__).with_name("dialler.c")
PATIENCE_S = 700.0  # longer than a count may take


class DiallerFailed(Exception):
    """The program, or the broker under it, failed."""


@dataclass(frozen=True)
class Seen:
    """Results of the program.

    Connections count as open from their response until it closes them; ``hung_up`` were closed
    without a byte, ``given_up`` had no response in time, ``lost`` were closed by the broker after a
    response, ``refused`` found no listener.
    """

    seconds: float
    dialled: int
    served: int
    hung_up: int
    given_up: int
    lost: int
    refused: int
    open_most: int
    open_most_of_address: int
    span_ms: int
    spans: list[int]
    """Answered in each span of the run."""


def count(servers: str, wanted: int, *, at_once: int, addresses: int) -> Seen:
    """Connect, ask, be answered and close, ``wanted`` times."""
    command = _command(servers, at_once, addresses, "count", wanted)
    return _seen(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))


class Storm:
    """A running storm; ``wait`` or ``end`` returns its results."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wait(self) -> Seen:
        """Until its time is up."""
        return _seen(self._process)

    def end(self) -> Seen:
        """Now, with all of its connections closed."""
        self._process.terminate()
        return _seen(self._process)


@contextmanager
def storm(
    servers: str,
    for_ms: int,
    *,
    at_once: int,
    addresses: int,
    hold_ms: int,
    patience_ms: int,
    nice: bool = False,
) -> Iterator[Storm]:
    """Run a storm, with answered connections open for ``hold_ms``; it ends with the context.

    With ``nice`` it takes only processor time that no other process wants.
    """
    command = _command(servers, at_once, addresses, "storm", for_ms, hold_ms, patience_ms)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if nice:
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
    try:
        yield Storm(process)
    finally:
        process.kill()
        process.wait(10)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def _command(servers: str, at_once: int, addresses: int, mode: str, *numbers: int) -> list[str]:
    return [str(compiled(SOURCE)), servers, str(at_once), str(addresses), mode, *map(str, numbers)]


def _seen(process: subprocess.Popen[bytes]) -> Seen:
    try:
        printed, complaint = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise DiallerFailed(f"it took more than {PATIENCE_S} s") from None
    if process.returncode != 0:
        raise DiallerFailed(complaint.decode().strip() or f"status {process.returncode}")
    return Seen(**json.loads(printed))

"""The C clients and their runs.

Owns finding the librdkafka of the confluent-kafka package; the meaning of a run belongs to its
callers. Invariant: a failed run raises with the client's output, and never counts as a figure.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka

from system_tests.harness import compiling
from system_tests.harness.jars import PROJECT, ToolchainMissing
from system_tests.harness.line_process import LineProcess, ProcessEnded
from system_tests.harness.waiting import TimedOut

FOLDER = PROJECT / "system_tests" / "benchmarks"
CLIENT, SMALL, FRAMES = "client", "small", "frames"
TRANSACTIONS = "transactions"
PATIENCE_S = 90


class RunFailed(Exception):
    """The client, or the broker under it, failed."""


def compiled(name: str = CLIENT) -> Path:
    """Return one of the programs, compiled if it is not up to date."""
    source = FOLDER / f"{name}.c"
    if name == FRAMES:
        return compiling.compiled(source)
    package = Path(confluent_kafka.__file__).parent
    libraries = [*package.parent.glob("confluent_kafka.libs/librdkafka*.so*")]
    libraries += [*package.glob(".dylibs/librdkafka*")]
    if not libraries:
        raise ToolchainMissing("the confluent-kafka package does not bring its librdkafka along")
    library = libraries[0]
    return compiling.compiled(source, str(library), f"-Wl,-rpath,{library.parent}", "-pthread")


def run(
    mode: str, servers: str, topic: str = "-", *numbers: int, program: str = CLIENT
) -> dict[str, float]:
    """Run a client once; see the head of its source for modes and their output."""
    figures: dict[str, float] = run_program(program, mode, servers, topic, *numbers)
    return figures


def run_program(program: str, *arguments: str | int, given: bytes = b"") -> Any:
    """Run a program once with this standard input; return what it printed."""
    command = [str(compiled(program)), *map(str, arguments)]
    what = f"{program} {arguments[0]}"
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, input=given, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired as late:
        raise RunFailed(f"{what} took more than {PATIENCE_S} s") from late
    if done.returncode != 0:
        complaint = done.stderr.decode(errors="replace").strip()[-500:]
        raise RunFailed(f"{what}: {complaint or f'status {done.returncode}'}")
    return json.loads(done.stdout)


class Waiting:
    """A connected client that produces one round when requested."""

    def __init__(self, process: LineProcess) -> None:
        self._process = process
        self._read()

    def produce(self) -> dict[str, float]:
        """The figures of one round."""
        self._process.send("")
        return self._read()

    def _read(self) -> dict[str, float]:
        try:
            figures: dict[str, float] = json.loads(self._process.receive(PATIENCE_S))
        except (ProcessEnded, TimedOut) as error:
            raise RunFailed("the waiting client ended, or took too long") from error
        return figures


@contextmanager
def waiting(program: str, mode: str, servers: str, topic: str, *numbers: int) -> Iterator[Waiting]:
    """Connect a client that starts its rounds when requested."""
    command = [str(compiled(program)), mode, servers, topic, *map(str, numbers)]
    with closing(LineProcess(command)) as process:
        yield Waiting(process)


def paced(
    servers: str, topic: str, count: int, size: int, pause_us: int
) -> AbstractContextManager[Waiting]:
    """Connect a client whose every round is ``count`` records, one each ``pause_us``."""
    return waiting(CLIENT, "paced", servers, topic, count, size, pause_us)


def many_producers(
    servers: str, topic: str, producers: int, size: int, partitions: int, *, ms: int
) -> AbstractContextManager[Waiting]:
    """Connect producers of one process that each have one record in flight for ``ms`` a round."""
    return waiting(SMALL, "producers", servers, topic, producers, size, partitions, ms)


def waiting_for_servers(topic: str) -> LineProcess:
    """Start a client that produces one record as soon as it gets the address."""
    return LineProcess([str(compiled()), "first", "-", topic])

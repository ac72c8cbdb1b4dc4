"""The C client and its runs.

Owns finding the librdkafka of the confluent-kafka package; the meaning of a run belongs to its
callers. Invariant: a failed run raises with the client's output, and never counts as a figure.
"""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

from system_tests.harness import compiling
from system_tests.harness.jars import PROJECT, ToolchainMissing

SOURCE = PROJECT / "system_tests" / "benchmarks" / "client.c"
PATIENCE_S = 90


class RunFailed(Exception):
    """The client, or the broker under it, failed."""


def compiled() -> Path:
    """Return the client's program, compiled if it is not up to date."""
    package = Path(confluent_kafka.__file__).parent
    libraries = [*package.parent.glob("confluent_kafka.libs/librdkafka*.so*")]
    libraries += [*package.glob(".dylibs/librdkafka*")]
    if not libraries:
        raise ToolchainMissing("the confluent-kafka package does not bring its librdkafka along")
    library = libraries[0]
    return compiling.compiled(SOURCE, str(library), f"-Wl,-rpath,{library.parent}")


def run(mode: str, servers: str, topic: str = "-", *numbers: int) -> dict[str, float]:
    """Run the client once; see the head of `client.c` for modes and their output."""
    command = [str(compiled()), mode, servers, topic, *map(str, numbers)]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired as late:
        raise RunFailed(f"{mode} took more than {PATIENCE_S} s") from late
    if done.returncode != 0:
        raise RunFailed(f"{mode}: {done.stderr.strip()[-500:] or f'status {done.returncode}'}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


class Paced:
    """A connected client that produces at an even pace when requested."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._read()

    def produce(self) -> dict[str, float]:
        """The quantiles of one round."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            raise RunFailed("the paced client ended, or took too long")
        figures: dict[str, float] = json.loads(line)
        return figures


@contextmanager
def paced(servers: str, topic: str, count: int, size: int, pause_us: int) -> Iterator[Paced]:
    """Connect a client whose every round is ``count`` records, one each ``pause_us``."""
    command = [str(compiled()), "paced", servers, topic, str(count), str(size), str(pause_us)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield Paced(process)
    finally:
        process.kill()
        process.wait(10)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def waiting_for_servers(topic: str) -> subprocess.Popen[bytes]:
    """Start a client that produces one record as soon as it gets the address."""
    return subprocess.Popen(
        [str(compiled()), "first", "-", topic], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

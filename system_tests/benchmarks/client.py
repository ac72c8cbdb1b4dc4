"""The C client, compiled once, and its runs.

It owns finding a compiler and the librdkafka that the confluent-kafka package brings; what a run
means is its callers' affair. The invariant: a run that fails raises with what the client printed,
and never counts as a figure.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import confluent_kafka

from system_tests.harness.jars import CACHE, PROJECT, ToolchainMissing

SOURCE = PROJECT / "system_tests" / "benchmarks" / "client.c"
PATIENCE_S = 90


class RunFailed(Exception):
    """The client, or the broker under it, did not do what was asked."""


def compiled() -> Path:
    """Return the client's program, compiled if it is not up to date."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise ToolchainMissing("no C compiler (cc, gcc or clang) is on the path: install one")
    package = Path(confluent_kafka.__file__).parent
    libraries = [*package.parent.glob("confluent_kafka.libs/librdkafka*.so*")]
    libraries += [*package.glob(".dylibs/librdkafka*")]
    if not libraries:
        raise ToolchainMissing("the confluent-kafka package does not bring its librdkafka along")
    library = libraries[0]
    digest = hashlib.sha256(SOURCE.read_bytes() + str(library).encode()).hexdigest()[:12]
    program = CACHE / f"benchmark-client-{digest}"
    if not program.exists():
        CACHE.mkdir(exist_ok=True)
        done = subprocess.run(
            [
                *[compiler, "-O2", "-Wall", "-o", str(program), str(SOURCE), str(library)],
                *[f"-Wl,-rpath,{library.parent}", "-lpthread"],
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise ToolchainMissing(f"the C client was not compiled:\n{done.stderr}")
    return program


def run(mode: str, servers: str, topic: str = "-", *numbers: int) -> dict[str, float]:
    """Run the client once; see the head of `client.c` for modes and what they print."""
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


def waiting_for_servers(topic: str) -> subprocess.Popen[bytes]:
    """Start a client that produces one record as soon as it is told where."""
    return subprocess.Popen(
        [str(compiled()), "first", "-", topic], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

"""A fork server with fake brokers, so that leases can be tested in milliseconds."""

from __future__ import annotations

import os
import select
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minibroker.testing.lease import ForkServerAddress

PATIENCE_S = 120.0

FAKE_FORK_SERVER = """
import json, os, select, signal, socket, sys, time
from minibroker.config import NUM_PARTITIONS
from minibroker.testing.fork_server import ForkServer

def start(settings):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("about to start", file=sys.stderr, flush=True)
    if settings[NUM_PARTITIONS] == 13:
        print("bad luck with 13 partitions", file=sys.stderr)
        return 1
    servers = f"127.0.0.1:{settings[NUM_PARTITIONS]}"
    ready = {"event": "ready", "bootstrap_servers": servers, "control_url": "http://127.0.0.1:1",
             "pid": os.getpid(), "ready_ns": time.monotonic_ns()}
    print(json.dumps(ready), flush=True)
    while True:
        signal.pause()

listener = socket.socket(fileno=int(sys.argv[1]))
select.select([listener], [], [])

def when_idle():
    print("idle at", time.monotonic_ns(), file=sys.stderr, flush=True)

ForkServer(listener, parent=0, start=start, when_idle=when_idle).run()
"""


@pytest.fixture
def fake_command(tmp_path: Path) -> tuple[str, str]:
    """What starts a fork server of pretended brokers."""
    script = tmp_path / "fake_fork_server.py"
    script.write_text(FAKE_FORK_SERVER)
    return (sys.executable, str(script))


@pytest.fixture
def fork_server(fake_command: tuple[str, str]) -> Iterator[ForkServerAddress]:
    address = ForkServerAddress(f"test-{uuid.uuid4().hex}", fake_command)
    yield address
    address.close()


@pytest.fixture
def is_gone() -> Callable[[int], bool]:
    """Waits until a process has ended, and not for ever."""

    def wait(pid: int) -> bool:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([descriptor], [], [], PATIENCE_S)[0])
        finally:
            os.close(descriptor)

    return wait

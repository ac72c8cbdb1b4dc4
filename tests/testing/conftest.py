"""A fork server with fake brokers, so that leases can be tested in milliseconds."""

from __future__ import annotations

import os
import select
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minibroker.testing.lease import ForkServerAddress

PATIENCE_S = 120.0
PLUGINS_OFF = tuple(
    word
    for name in ("randomly", "anyio", "hypothesispytest", "trio")
    for word in ("-p", f"no:{name}")
)
"""Options of a run of pytest: plugins of others take longer to import than most runs take."""
PLUGINS_AND_CACHE_OFF = (*PLUGINS_OFF, "-p", "no:cacheprovider")

FAKE_FORK_SERVER = """
import json, os, select, signal, socket, sys, time
from contextlib import suppress
from minibroker.broker.settings import NUM_PARTITIONS
from minibroker.testing.fork_server import ForkServer

def start(settings):
    # Python runs no handler for a signal that arrives just before `pause` blocks: wait for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    print("about to start", file=sys.stderr, flush=True)
    notify(f"{sys.argv[1]}-started", os.getpid())
    if settings[NUM_PARTITIONS] == 13:
        print("bad luck with 13 partitions", file=sys.stderr)
        return 1
    if settings[NUM_PARTITIONS] == 2 and not os.fork():
        signal.pause()  # a worker that has the same output as its broker
    servers = f"127.0.0.1:{settings[NUM_PARTITIONS]}"
    ready = {"event": "ready", "bootstrap_servers": servers, "control_url": "http://127.0.0.1:1",
             "pid": os.getpid(), "ready_ns": time.monotonic_ns()}
    print(json.dumps(ready), flush=True)
    signal.sigwait([signal.SIGTERM])
    return 0

listener = socket.socket(fileno=int(sys.argv[2]))
select.select([listener], [], [])

def notify(address, number):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(FileNotFoundError):
        sender.sendto(b"%d" % number, address)

def when_idle():
    notify(sys.argv[1], time.monotonic_ns())

ForkServer(listener, parent=0, start=start, when_idle=when_idle).run()
"""


@pytest.fixture
def idle_socket(tmp_path: Path) -> Iterator[socket.socket]:
    """Receives the time at which a fork server of pretended brokers became idle."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "idle"))
        receiver.settimeout(PATIENCE_S)
        yield receiver


@pytest.fixture
def started_socket(tmp_path: Path) -> Iterator[socket.socket]:
    """Receives the pids of pretended brokers as they start; sent without waiting for a receiver."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "idle-started"))
        receiver.settimeout(PATIENCE_S)
        yield receiver


@pytest.fixture
def fake_command(tmp_path: Path, idle_socket: socket.socket) -> tuple[str, ...]:
    """What starts a fork server of pretended brokers."""
    script = tmp_path / "fake_fork_server.py"
    script.write_text(FAKE_FORK_SERVER)
    return (sys.executable, str(script), str(idle_socket.getsockname()))


@pytest.fixture
def fork_server(fake_command: tuple[str, ...]) -> Iterator[ForkServerAddress]:
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

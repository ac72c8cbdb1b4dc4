"""Reasons of rejected and delayed connections, over HTTP and in the terminal."""

from __future__ import annotations

import codecs
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from system_tests.connections.conftest import Dial, Limited
from system_tests.connections.dialling import listener_address, set_ip_rate, wait_counted
from system_tests.connections.test_counts import EXTERNAL_IS_PLAINTEXT, TWO_LISTENERS, alter
from system_tests.connections.test_storm import storm
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask, processes, wait_ready
from system_tests.harness.processes import open_files, pss_bytes, tree
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.minibroker

HOME = "\x1b[H"
WIDTH, HEIGHT = 100, 30

REDRAWS, CLIENTS, ROUNDS = 40, 150, 3
GROWTH_BYTES = 3 * 1024 * 1024
"""Growth of a process that is allowed after the first redraws; a screen takes 100 kB."""
FILES_OF_STORM = 20
"""Connections of the storm that may be open at one moment and not at another."""


def connections(broker: RunningBroker) -> Any:
    return ask(broker, "GET", "/v1/connections")


def without_columns() -> dict[str, str]:
    """The environment without the width of a terminal."""
    return {name: value for name, value in os.environ.items() if name != "COLUMNS"}


def printed(broker: RunningBroker) -> str:
    """Return the command's output, read through the control API."""
    assert broker.control_url is not None
    command = [sys.executable, "-m", "minibroker", "connections"]
    ended = subprocess.run(
        [*command, "--once", "--control", broker.control_url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        env=without_columns(),
    )
    assert not ended.stderr
    return ended.stdout


class Case(NamedTuple):
    """Settings that reject a connection from 127.0.0.2, and the reason that is given."""

    settings: tuple[str, ...]
    allowed: int
    text: str


CASES = {
    "max_connections_per_ip": Case(
        ("max.connections.per.ip=2",),
        2,
        "it had 2 connections, the most that max.connections.per.ip=2 allows",
    ),
    "max_connections_per_ip override": Case(
        ("max.connections.per.ip=9", "max.connections.per.ip.overrides=127.0.0.2:1"),
        1,
        "it had 1 connection, the most that max.connections.per.ip.overrides=127.0.0.2:1 allows",
    ),
    "kafka_connections_max": Case(
        ("kafka_connections_max=3",),
        3,
        "the broker had 3 connections, the most that kafka_connections_max=3 allows",
    ),
    "kafka_connections_max_per_ip": Case(
        ("kafka_connections_max_per_ip=1",),
        1,
        "it had 1 connection, the most that kafka_connections_max_per_ip=1 allows",
    ),
    "kafka_connections_max_per_ip override": Case(
        ("kafka_connections_max_overrides=127.0.0.2:0",),
        0,
        "it had no connection, the most that kafka_connections_max_overrides=127.0.0.2:0 allows",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rejected_connection_names_the_limit_and_its_value(
    name: str, limited: Limited, dial: Dial
) -> None:
    case = CASES[name]
    broker = limited(*case.settings)
    assert all(client.answered() for client in dial(broker, case.allowed, "127.0.0.2"))
    (refused,) = dial(broker, 1, "127.0.0.2")
    assert refused.is_disconnected()
    (rejection,) = connections(broker)["rejections"]
    text = f"127.0.0.2 was rejected: {case.text}; close some, or raise the limit."
    assert (rejection["reason"], rejection["text"]) == (name.split(maxsplit=1)[0], text)
    assert rejection["listener"] == "PLAINTEXT"
    host, port = refused.socket.getsockname()
    assert rejection["client_address"] == f"{host}:{port}"
    assert f"ago, PLAINTEXT: {text}\n" in printed(broker)


@pytest.mark.parametrize(
    ("ip", "rate", "reason_text"),
    [
        ("127.0.0.2", 0.0, "=0 of the ip 127.0.0.2 allows no connection; raise or remove it."),
        (None, 0.0, "=0 of all addresses allows no connection; raise or remove it."),
        (
            "127.0.0.2",
            1.0,
            "=1 of the ip 127.0.0.2; keep connections open, or raise the quota.",
        ),
    ],
)
def test_rejected_connection_names_the_quota_and_its_entity(
    ip: str | None, rate: float, reason_text: str, limited: Limited, dial: Dial
) -> None:
    broker = limited("connection.ip.throttle.recheck=false", "quota.window.num=2")
    (admin,) = dial(broker)
    set_ip_rate(admin, ip, rate)
    clients = dial(broker, 3, "127.0.0.2")
    assert clients[-1].is_disconnected()
    rejection = connections(broker)["rejections"][0]
    assert rejection["reason"] == "ip_connection_creation_rate"
    assert rejection["text"].startswith("127.0.0.2 was rejected: ")
    assert rejection["text"].endswith(f"the quota connection_creation_rate{reason_text}")
    assert rejection["text"] in printed(broker)


def test_least_recently_used_connection_that_is_closed_names_the_limit(
    limited: Limited, dial: Dial
) -> None:
    broker = limited()
    first, *rest = dial(broker, 4, "127.0.0.2")
    for client in (first, *rest):
        assert client.answered()
    wait_counted(broker, 4)
    (admin,) = dial(broker)
    alter(admin, max__connections="4")
    assert first.is_disconnected()
    wait_counted(broker, 4)
    (rejection,) = connections(broker)["rejections"]
    assert rejection["reason"] == "max_connections"
    assert rejection["text"] == (
        "127.0.0.2 was disconnected: the broker had more connections than max.connections=4 "
        "allows, and this one was the least recently used; close some, or raise the limit."
    )
    assert rejection["text"] in printed(broker)


def test_waiting_listener_reports_reached_limit(limited: Limited, dial: Dial) -> None:
    own = "listener.name.external.max.connections"
    broker = limited(f"{own}=1", EXTERNAL_IS_PLAINTEXT, listener=TWO_LISTENERS)
    external = listener_address(broker, "EXTERNAL")
    first, second = dial(external, 2)
    assert first.answered()

    def waiting() -> Any:
        (listener,) = [
            each for each in connections(broker)["listeners"] if each["listener"] == "EXTERNAL"
        ]
        return listener if listener["waiting"] else None

    listener = wait_until(waiting, "the second connection to wait")
    assert (listener["connections"], listener["limit"], listener["held"]) == (1, 1, 0)
    assert f"EXTERNAL waits for {own}, since " in printed(broker)
    first.close()
    assert second.answered()
    wait_until(lambda: waiting() is None, "no connection to wait")
    assert 0 < connections(broker)["listeners"][1]["blocked_share"] <= 1


def test_sharded_processors_report_rejection_reason(limited: Limited, dial: Dial) -> None:
    broker = limited("acceptor.mode=sharded", "kafka_connections_max_overrides=127.0.0.2:1")
    assert dial(broker, 1, "127.0.0.2")[0].answered()
    assert dial(broker, 1, "127.0.0.2")[0].is_disconnected()
    view = connections(broker)
    assert (view["mode"], view["total"]) == ("sharded", 1)
    (rejection,) = view["rejections"]
    assert rejection["text"] == (
        "127.0.0.2 was rejected: it had 1 connection, the most that "
        "kafka_connections_max_overrides=127.0.0.2:1 allows; close some, or raise the limit."
    )
    output = printed(broker)
    assert "accepted by processors" in output
    assert rejection["text"] in output


@pytest.mark.parametrize("victim", ["acceptor", "processor-0", "controller"])
def test_connections_view_works_after_process_kill(
    victim: str, limited: Limited, dial: Dial
) -> None:
    broker = limited("max.connections.per.ip=2")
    for client in dial(broker, 2, "127.0.0.2"):
        assert client.answered()
    assert dial(broker, 1, "127.0.0.2")[0].is_disconnected()
    before = connections(broker)
    pid = processes(broker)[victim].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    during = printed(broker)
    assert "PLAINTEXT" in during
    assert "max.connections.per.ip=2" in during
    wait_ready(broker)
    after = connections(broker)
    assert [each["text"] for each in after["rejections"]] == [
        each["text"] for each in before["rejections"]
    ]


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.master = master
        self.shown = ""
        # The terminal shows ^C between two bytes of a character where it was typed just then.
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def wait_shown(self, text: str) -> None:
        """Read the terminal until ``text`` is on it."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            remaining_s = deadline - time.monotonic()
            assert remaining_s > 0, f"{text!r} was not drawn: {self.shown[-2000:]!r}"
            if select.select([self.master], [], [], remaining_s)[0]:
                self.shown += self._decode(os.read(self.master, 65536))

    def wait_drawn(self, times: int) -> None:
        """Read the terminal until the view was redrawn ``times`` more times."""
        for _ in range(times):
            self.shown = ""
            self.wait_shown(HOME)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def ended(self) -> int:
        """Return the exit status; the remaining output is read, because a full terminal would
        block it.
        """
        self.wait_shown("\x1b[?25h")
        return self.process.wait(PATIENCE_S)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "minibroker", "connections", "--interval", "0.1", *arguments]
    process = subprocess.Popen(
        ["setsid", "--ctty", *command],  # so that Ctrl-C is sent to this command only
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "COLUMNS": str(WIDTH), "LINES": str(HEIGHT), "NO_COLOR": "1"},
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_view_is_redrawn_until_interrupt(limited: Limited, dial: Dial) -> None:
    broker = limited("max.connections=7", "max.connections.per.ip=2")
    with terminal("--bootstrap-server", broker.bootstrap_servers) as screen:
        screen.wait_shown("no rejected connections")
        assert all(client.answered() for client in dial(broker, 2, "127.0.0.2"))
        screen.wait_shown("2/7 connections")
        screen.wait_shown("127.0.0.2          2/2")
        assert dial(broker, 1, "127.0.0.2")[0].is_disconnected()
        screen.wait_shown("max.connections.per.ip=2 allows")
        screen.type(b"\x03")
        assert screen.ended() == 0
        assert "Traceback" not in screen.shown


def test_connections_view_exits_with_message_on_broker_stop(limited: Limited) -> None:
    broker = limited()
    assert broker.control_url is not None
    with terminal("--control", broker.control_url) as screen:
        screen.wait_shown("no connections")
        assert broker.stop() == 0
        assert screen.ended() == 1
        screen.wait_shown(f"the broker at {broker.control_url.rstrip('/')} closed the connection")


def test_connections_command_rejected_suggests_control_option(limited: Limited) -> None:
    broker = limited("kafka_connections_max=0")
    command = [sys.executable, "-m", "minibroker", "connections", "-b", broker.bootstrap_servers]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 3
    assert "name the control API with --control" in ended.stderr
    assert "kafka_connections_max=0" in printed(broker)


@pytest.mark.slow
@pytest.mark.alone
def test_connections_view_during_storm_leaks_no_memory(limited: Limited) -> None:
    broker = limited("max.connections=12", "max.connections.per.ip=2", "kafka_connections_max=13")
    assert broker.control_url is not None
    looking = ("--interval", "0.05", "--control", broker.control_url)
    with storm(broker) as storm_clients, terminal(*looking) as screen:
        screen.wait_drawn(REDRAWS)
        storm_clients.wait_served(CLIENTS)
        pids = [*tree(broker.pid), screen.process.pid]
        before = [(pss_bytes(pid), open_files(pid)) for pid in pids]
        for _ in range(ROUNDS):
            screen.wait_drawn(REDRAWS)
            storm_clients.wait_served(CLIENTS)
        for pid, (memory, files) in zip(pids, before, strict=True):
            assert pss_bytes(pid) - memory < GROWTH_BYTES, pid
            assert open_files(pid) - files <= FILES_OF_STORM, pid
        screen.wait_shown("REJECTED")
        screen.type(b"\x03")
        assert screen.ended() == 0

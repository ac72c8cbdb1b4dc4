"""`minibroker trace` prints what happens from its start on, and ends cleanly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minibroker.testing import MiniBroker
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from tests.broker.network.raw_client import RawClient

HEARTBEAT = HeartbeatRequest(group_id="g", member_id="m")
MINUTE_S = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker() as started:
        yield started


@contextmanager
def tracing(broker: MiniBroker, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A trace that has started."""
    command = [sys.executable, "-m", "minibroker", "trace", "--control", broker.control_url]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "tracing; press Ctrl-C to end\n"
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_requests_are_printed_until_ctrl_c(broker: MiniBroker) -> None:
    broker.journal.stop()
    with tracing(broker, "--client-id", "traced", "--api", "Heartbeat") as process:
        with RawClient(broker.bootstrap_servers, "other") as other:
            other.ask(HEARTBEAT, 4)
        with RawClient(broker.bootstrap_servers, "traced") as client:
            client.ask(HEARTBEAT, 4)
            assert " traced  Heartbeat v4 #1  " in line_of(process)
            process.send_signal(signal.SIGINT)
            assert process.wait(MINUTE_S) == 0
    assert not broker.control.get("v1", "journal", "state")["enabled"]


def test_entries_are_printed_as_json(broker: MiniBroker) -> None:
    with tracing(broker, "--json", "--kind", "clock") as process:
        broker.advance(1000)
        entry = json.loads(line_of(process))
        assert (entry["kind"], entry["role"]) == ("clock", "controller")


def test_frames_are_dissected(broker: MiniBroker) -> None:
    with tracing(broker, "-v", "--kind", "request,response") as process:
        with RawClient(broker.bootstrap_servers, "traced") as client:
            client.ask(HEARTBEAT, 4)
        assert process.stdout is not None
        assert any("group_id: 'g'" in line for line in process.stdout)


def test_closed_pipe_ends_the_trace(broker: MiniBroker) -> None:
    with tracing(broker, "--kind", "clock") as process:
        assert process.stdout is not None
        process.stdout.close()
        broker.advance(1)
        assert process.wait(MINUTE_S) == 0


def test_journal_that_was_on_stays_on(broker: MiniBroker) -> None:
    broker.journal.start()
    with tracing(broker, "--kind", "clock") as process:
        broker.advance(1)
        assert "clock" in line_of(process)
        process.send_signal(signal.SIGINT)
        process.wait(MINUTE_S)
    assert broker.control.get("v1", "journal", "state")["enabled"]
    broker.journal.stop()


def test_unknown_api_is_an_error(broker: MiniBroker) -> None:
    broker.journal.stop()
    command = [sys.executable, "-m", "minibroker", "trace", "--control", broker.control_url]
    result = subprocess.run(
        [*command, "--api", "Hartbeat"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "did you mean 'Heartbeat'" in result.stderr
    assert not broker.control.get("v1", "journal", "state")["enabled"]

"""Each entry of the journal becomes its line."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from minibroker.cli.trace import LOSS_REASONS, TraceLines
from minibroker.lab.control.journal import view_of
from minibroker.lab.journal.entries import Loss, LossReason
from minibroker.lab.schema import to_json
from minibroker.testing import MiniBroker
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from tests.broker.network.raw_client import RawClient
from tests.lab.journal.entries_of_tests import entry_of, request_entry, response_entry

STAGES = {"queue": 0.04, "execution": 1.0, "network": 2.0, "send": 0.5, "total": 4.25}


def shown(entry: Any, *, frames: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = to_json(view_of(entry, frames=frames))
    return found


def lines(*entries: dict[str, Any], frames: bool = False) -> list[str]:
    trace = TraceLines(frames=frames)
    found = [line for entry in entries for line in trace.take(entry)]
    return [*found, *trace.end()]


def test_request_and_its_response_are_one_line() -> None:
    response = response_entry(clock_ms=3_723_004.5, stages=STAGES, client_id="c")
    (line,) = lines(shown(request_entry()), shown(response))
    assert line == (
        "01:02:03.004  5 c  Heartbeat v4 #7  22 B -> 12 B  4.2 ms "
        "(queue 0.0, execution 1.0, network 2.0, send 0.5)"
    )


def test_throttle_is_shown() -> None:
    response = response_entry(stages=STAGES, throttle_time_ms=100)
    (line,) = lines(shown(request_entry()), shown(response))
    assert line.endswith("  throttle 100 ms")


def test_response_of_an_earlier_request_is_shown_alone() -> None:
    (line,) = lines(shown(response_entry(client_id="c")))
    assert line == "00:00:00.000  5 c  Heartbeat v4 #7 -> 12 B  not sent"


def test_token_without_header_is_shown_by_its_size() -> None:
    token: dict[str, Any] = {"connection": "5", "client_id": "c", "frame_bytes": 9}
    (line,) = lines(
        shown(entry_of("request", **token)), shown(entry_of("response", **token, stages=STAGES))
    )
    assert line.startswith("00:00:00.000  5 c  no header  9 B -> 9 B")


def test_requests_without_a_response_are_shown_when_that_is_certain() -> None:
    request, closed = shown(request_entry()), entry_of("connection_closed", connection="5")
    details = {"listener": "PLAINTEXT", "reason": "client_reset", "text": "gone \x1b"}
    found = lines(request, request, shown(closed) | {"details": details}, request)
    assert found == [
        "00:00:00.000  5 c  Heartbeat v4 #7  22 B  no response",
        "00:00:00.000  5 c  Heartbeat v4 #7  22 B  no response",
        "00:00:00.000  5 -  closed  client_reset: gone \\x1b",
        "00:00:00.000  5 c  Heartbeat v4 #7  22 B  no response",
    ]


def of_proxy(entry: Any, number: int) -> dict[str, Any]:
    return shown(entry) | {"role": "proxy", "correlation_id": number}


def test_proxy_has_many_requests_of_a_connection_in_flight() -> None:
    """The second one, a Produce with acks 0, has no response."""
    sent = [of_proxy(request_entry(), number) for number in (1, 2, 3)]
    answers = [of_proxy(response_entry(stages={"total": 4.25}), number) for number in (1, 3)]
    assert [line.partition("v4 ")[2] for line in lines(*sent, *answers)] == [
        "#1  22 B -> 12 B  4.2 ms",
        "#2  22 B  no response",
        "#3  22 B -> 12 B  4.2 ms",
    ]


def test_requests_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.cli.trace.IN_FLIGHT_MAX", 2)
    trace = TraceLines()
    sent = [of_proxy(request_entry(), number) for number in (1, 2, 3)]
    found = [list(trace.take(entry)) for entry in sent]
    assert [len(each) for each in found] == [0, 0, 1]
    assert "#1  22 B  no response" in found[2][0]


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (
            "connection_opened",
            {"connection": "5", "address": "h:1", "details": {"listener": "L"}},
            "5 -  opened  h:1  L",
        ),
        (
            "connection_rejected",
            {
                "connection": "5",
                "address": "h:1",
                "details": {"listener": "L", "reason": "dropped", "limit": "max", "value": 2.0},
            },
            "5 -  rejected  h:1  L  dropped  max=2",
        ),
        (
            "connection_rejected",
            {
                "connection": "5",
                "address": "h:1",
                "details": {"listener": "L", "reason": "stopping", "limit": None, "value": None},
            },
            "5 -  rejected  h:1  L  stopping",
        ),
        (
            "fault",
            {"connection": "5", "client_id": "c", "details": {"rule": "r", "action": "refuse"}},
            "5 c  fault  refuse (rule r)",
        ),
        (
            "fault",
            {"api": "Fetch", "version": 4, "details": {"rule": "r", "action": "delay"}},
            "processor-0  fault  delay (rule r)  Fetch v4 #None",
        ),
        (
            "clock",
            {"details": {"from": 0, "to": 1500, "rate": 2.0, "frozen": True}},
            "processor-0  clock  +1.500 s  rate 2  frozen",
        ),
        (
            "state",
            {"details": {"what": "group", "name": "g", "from": None, "to": "Stable"}},
            "processor-0  group g  none -> Stable",
        ),
    ],
)
def test_other_entries_are_one_line_each(kind: str, fields: dict[str, Any], text: str) -> None:
    assert lines(shown(entry_of(kind, **fields))) == [f"00:00:00.000  {text}"]


def test_frames_are_dissected() -> None:
    request, response = request_entry("orders"), response_entry(27, stages=STAGES)
    found = lines(*(shown(each, frames=True) for each in (request, response)), frames=True)
    assert any("group_id: 'orders'" in line for line in found)
    assert any("error_code: 27 REBALANCE_IN_PROGRESS" in line for line in found)


def test_frame_that_is_not_kept_or_damaged_is_no_error() -> None:
    request = shown(request_entry())
    assert lines(request, frames=True)[1:] == ["  request: its frame is not kept"]
    damaged = request | {"frame": base64.b64encode(b"\x7f\xff").decode(), "api": "32767"}
    assert len(lines(damaged, frames=True)) > 1


def test_lost_entries_are_one_line_after_the_requests_before_them() -> None:
    reason = LossReason.PROCESS_ENDED
    one = shown(Loss("worker-0", 12, reason, 1.0).entry(13, 2.0))
    whole = shown(Loss("", 3, LossReason.JOURNAL_MEMORY, 1.0).entry(16, 2.0))
    found = lines(shown(request_entry()), one, shown(response_entry(client_id="c")), whole)
    assert found == [
        "00:00:00.000  5 c  Heartbeat v4 #7  22 B  no response",
        "00:00:00.002  12 entries of worker-0 lost: the process ended before it handed them over",
        "00:00:00.000  5 c  Heartbeat v4 #7 -> 12 B  not sent",
        "00:00:00.002  3 entries lost: the journal's memory is full",
    ]


def test_every_reason_of_a_loss_has_words() -> None:
    assert LOSS_REASONS.keys() == set(LossReason)


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


def test_frames_of_running_broker_are_dissected(broker: MiniBroker) -> None:
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

"""Which ends of processes are failures, and warnings about them."""

from __future__ import annotations

import os
import signal
import warnings

import pytest

from minibroker.testing import BrokerFailed, MiniBroker
from minibroker.testing.failures import LOG_LINES_MAX, FailureWarnings, find_failures

START = "2026-11-28 12:00:00,000 INFO controller something happened\n"
TRACEBACK = "controller (pid 7) failed:\nTraceback (most recent call last):\nValueError: no\n"
DIED = "minibroker: controller (pid 7) died: exit status 1\n"
STUCK = "minibroker: combined-0 (pid 8) killed: it did not end in 8.0 s\n"
KILLED = "minibroker: combined-1 (pid 9) died: signal 9 (SIGKILL)\n"


@pytest.mark.parametrize(
    ("log", "failures"),
    [
        (START + TRACEBACK + DIED, ["controller (pid 7) died: exit status 1"]),
        (
            DIED.replace("exit status 1", "exit status 0"),
            ["controller (pid 7) died: exit status 0"],
        ),
        (
            DIED.replace("exit status 1", "signal 11 (SIGSEGV)"),
            ["controller (pid 7) died: signal 11 (SIGSEGV)"],
        ),
        (STUCK, []),
        (KILLED, []),
        (
            KILLED.replace("\n", "; the broker keeps running and restarts it in 0.0 s\n"),
            [],
        ),
        (f"WARNING client='{DIED}", []),
        (
            DIED + KILLED + STUCK,
            [
                "controller (pid 7) died: exit status 1",
            ],
        ),
    ],
)
def test_failures_are_ends_that_nobody_outside_caused(log: str, failures: list[str]) -> None:
    found = [f"{each.process} (pid {each.pid}) {each.end}" for each in find_failures(log)]
    assert found == failures


def test_failure_has_the_log_before_it() -> None:
    [failure] = find_failures(START * LOG_LINES_MAX + TRACEBACK + DIED + START)
    assert failure.log.endswith(TRACEBACK + DIED.rstrip())
    assert len(failure.log.splitlines()) == LOG_LINES_MAX
    assert str(failure).startswith("controller (pid 7) died: exit status 1; the broker's log:\n")


def test_each_failure_is_one_warning() -> None:
    failures = FailureWarnings()
    with pytest.warns(BrokerFailed, match="controller") as caught:
        failures.warn(DIED)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        failures.warn(DIED + STUCK)
    with pytest.warns(BrokerFailed, match=r"controller \(pid 10\) died"):
        failures.warn(DIED + STUCK + DIED.replace("7", "10"))


def abort(broker: MiniBroker, pid: int) -> None:
    """Let a process of the broker end as after a defect, and wait until its end is logged."""
    os.kill(pid, signal.SIGABRT)
    while f"(pid {pid}) died" not in broker.log():
        pass


def test_process_that_dies_by_itself_is_a_warning_of_check_and_of_stop() -> None:
    broker = MiniBroker().start()
    try:
        processes = broker.control.get("v1", "health")["processes"]
        pids = {process["name"]: process["pid"] for process in processes}
        abort(broker, pids["acceptor"])
        with pytest.warns(BrokerFailed, match=r"acceptor .* died: signal 6 \(SIGABRT\)"):
            broker.check()
        broker.check()
        abort(broker, pids["controller"])
    finally:
        with pytest.warns(BrokerFailed, match=r"^controller \(pid \d+\) died") as caught:
            broker.stop()
    assert len(caught) == 1

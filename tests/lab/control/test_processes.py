"""Processes of the broker are killed and stopped by request."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.lab.control.processes import ProcessSignals
from minibroker.lab.schema import InvalidJson
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.roles import RoleState, RoleStatus


class At:
    """A process of the broker that does nothing, and its signals."""

    def __init__(self, running: subprocess.Popen[bytes]) -> None:
        self.running = running
        self.statuses = [
            RoleStatus("worker-0", running.pid, 1, RoleState.READY, 0, None),
            RoleStatus("controller", 1, 1, RoleState.READY, 0, None),
        ]
        self.noted: list[tuple[str, str, str]] = []
        self.signals = ProcessSignals(
            SimulatedClock(MockClock()),
            lambda: self.statuses,
            lambda *at: self.noted.append(at),
            self.hand_over,
        )
        self.handed_over: list[tuple[str, bool]] = []

    async def hand_over(self, process: str, *, ends: bool) -> None:
        """Note whether the process could answer at that moment."""
        await trio.lowlevel.checkpoint()
        assert ends == (self.noted[-1:] == [("worker-0", "running", "killed")])
        self.handed_over.append((process, self.state() not in "TZ"))

    def state(self) -> str:
        """The kernel's letter for the state of the process."""
        text = Path(f"/proc/{self.running.pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0]


@pytest.fixture
def at() -> Iterator[At]:
    with subprocess.Popen(["sleep", "60"]) as running:
        yield At(running)
        running.kill()


async def test_process_is_killed_after_it_handed_over(at: At) -> None:
    await at.signals.kill("worker-0", "a test")
    assert at.running.wait() == -signal.SIGKILL
    assert at.noted == [("worker-0", "running", "killed")]
    assert at.handed_over == [("worker-0", True)]


async def test_process_that_ended_while_it_handed_over_gets_no_signal(at: At) -> None:
    async def end(process: str, *, ends: bool) -> None:
        del process, ends
        at.statuses = []

    at.signals = ProcessSignals(SimulatedClock(MockClock()), lambda: at.statuses, print, end)
    statuses = at.statuses
    await at.signals.kill("worker-0", "a test")
    at.statuses = statuses
    await at.signals.pause("worker-0", 1)
    assert at.running.poll() is None


async def test_process_is_stopped_for_a_time(at: At) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(at.signals.pause, "worker-0", 60_000)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert at.state() != "T"
    await at.signals.pause("worker-0", 1)
    assert at.state() != "T"
    paused, resumed = ("worker-0", "running", "paused"), ("worker-0", "paused", "running")
    assert at.noted == [paused, resumed] * 2
    assert at.handed_over == [("worker-0", True)] * 2


async def test_process_that_is_being_restarted_gets_no_signal(at: At) -> None:
    at.statuses = [RoleStatus("worker-0", 0, 1, RoleState.WAITING, 1, None)]
    await at.signals.kill("worker-0", "a test")
    await at.signals.pause("worker-0", 1)
    assert at.running.poll() is None


def test_only_known_processes_are_accepted_and_the_controller_is_not_paused(at: At) -> None:
    at.signals.check("kill", "controller")
    at.signals.check("pause", "worker-0")
    for action, process in (("kill", "worker-9"), ("pause", "controller")):
        with pytest.raises(InvalidJson, match="process: is not one of the processes here: "):
            at.signals.check(action, process)

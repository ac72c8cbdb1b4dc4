"""Kills processes of a broker one by one, or all at once.

Owns the signals, the wait for the restart, and the layouts of processes that are killed. It must
never know clients. The invariant: a process counts as replaced only when another one has its name
and its restart is counted.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress

from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import processes
from system_tests.harness.processes import is_running, tree
from system_tests.harness.waiting import wait_until

ROLES = ("acceptor", "processor", "worker", "controller")

DEFAULT_LAYOUT: Mapping[str, str] = {}
"""One process for the network processor and the I/O worker."""

COMBINED: Mapping[str, str] = {
    "process.mode": "combined",
    "num.network.threads": "2",
    "num.io.threads": "2",
}
"""Two processes, each with a network processor and an I/O worker."""

SEPARATE: Mapping[str, str] = {**COMBINED, "process.mode": "separate"}
"""Two network processors and two I/O workers, each in a process of its own."""


def kill(broker: RunningBroker, name: str) -> None:
    """Send SIGKILL to one process and wait until it was restarted."""
    before = processes(broker)[name]
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)

    def replaced() -> bool:
        now = processes(broker)[name]
        return now.pid not in {None, before.pid} and now.restarts > before.restarts

    wait_until(replaced, f"{name} to be started again")


def names_of(broker: RunningBroker, role: str) -> list[str]:
    found = [name for name in processes(broker) if name.split("-")[0] == role]
    assert found, f"no process is called {role}: {sorted(processes(broker))}"
    return found


def one_of_each_process(broker: RunningBroker) -> list[str]:
    """Return the name of one role of each process, without the supervisor and the recorder."""
    names = {
        each.pid: each.name
        for each in processes(broker).values()
        if each.name.split("-")[0] in ROLES
    }
    return sorted(names.values())


def in_same_process(broker: RunningBroker, name: str) -> frozenset[str]:
    """Return the names of all roles of a role's process."""
    found = processes(broker)
    return frozenset(each.name for each in found.values() if each.pid == found[name].pid)


def kill_all(broker: RunningBroker) -> None:
    """Send SIGKILL to the supervisor and all its child processes at once."""
    family = tree(broker.pid)
    for pid in family:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    broker.kill()
    wait_until(lambda: not any(is_running(pid) for pid in family), "every process to end")

"""Kills processes of a broker one by one, or all at once.

Owns the signals and the wait for the restart. It must never know clients. The invariant: a
process counts as replaced only when another one has its name and its restart is counted.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import processes
from system_tests.harness.processes import is_running, tree
from system_tests.harness.waiting import wait_until

ROLES = ("acceptor", "processor", "worker", "controller")


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


def kill_all(broker: RunningBroker) -> None:
    """Send SIGKILL to the supervisor and all its child processes at once."""
    family = tree(broker.pid)
    for pid in family:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    broker.kill()
    wait_until(lambda: not any(is_running(pid) for pid in family), "every process to end")

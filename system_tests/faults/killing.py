"""Killing the processes of a broker one by one, or all at once.

Owns the signals and the wait for what must follow; it expects nothing of clients. The invariant: a
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
    """SIGKILL one process and wait until another has its place."""
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
    """SIGKILL the supervisor and everything that it forked, at once."""
    family = tree(broker.pid)
    for pid in family:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    broker.kill()
    wait_until(lambda: not any(is_running(pid) for pid in family), "every process to be gone")

"""Real forks: a process notices the loss of its supervisor, and waits for others in real time."""

from __future__ import annotations

import os
import signal

from minibroker.runtime.orphans import is_orphan, wait_until_gone


def test_open_lifeline_is_no_orphan_and_a_closed_one_is() -> None:
    reading, writing = os.pipe()
    assert not is_orphan(reading)
    os.close(writing)
    assert is_orphan(reading)
    os.close(reading)


def test_wait_ends_when_processes_exit() -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    assert not wait_until_gone([pid], 0.01)
    os.kill(pid, signal.SIGKILL)
    assert wait_until_gone([pid], 120)
    os.waitpid(pid, 0)
    assert wait_until_gone([pid], 0)

"""What a forked process keeps of its parent, and what it closes."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from minibroker.runtime.supervisor import Exit

if TYPE_CHECKING:
    from tests.runtime.conftest import Run

from minibroker.runtime.child import SWITCH_INTERVAL_S, is_orphan, wait_until_gone


def test_child_holds_only_its_ends_and_its_own_signals(run_supervised: Run) -> None:
    supervised = run_supervised("""
        def main(life):
            fds = {int(fd) for fd in os.listdir("/proc/self/fd")} - {0, 1, 2}
            fds -= {fd for fd in fds if not os.path.exists(f"/proc/self/fd/{fd}")}
            say(event="facts", name=life.name, fds=sorted(fds - {life.lifeline_fd, life.ready_fd}),
                wakeup=signal.set_wakeup_fd(-1),
                blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
                term=signal.getsignal(signal.SIGTERM), int=signal.getsignal(signal.SIGINT),
                frozen=gc.get_freeze_count() > 1000, random=random.random(),
                switches=sys.getswitchinterval(), title=open("/proc/self/comm").read().strip())
            serve(life)

        children = [ChildSpec("worker-0", main), ChildSpec("controller-longer", main)]
    """)
    supervised.until("all ready")
    facts = [line for line in supervised.seen if line["event"] == "facts"]
    assert {line["title"] for line in facts} == {"mb-worker-0", "mb-controller-l"}
    for line in facts:
        assert line["fds"] == []
        assert (line["wakeup"], line["blocked"]) == (-1, [])
        assert (line["term"], line["int"]) == (signal.SIG_DFL, signal.SIG_IGN)
        assert line["frozen"]
        assert line["switches"] == pytest.approx(SWITCH_INTERVAL_S)
    assert facts[0]["random"] != facts[1]["random"]


def test_children_notice_a_killed_supervisor(run_supervised: Run) -> None:
    """Also the older siblings: no later child may hold the lifeline's other end open."""
    supervised = run_supervised("""
        children = [ChildSpec(name, serve) for name in ("a", "b", "c")]
    """)
    supervised.until("all ready")
    supervised.process.kill()
    _, events, _ = supervised.end()
    assert {name for event, name in events if event == "left"} == {"a", "b", "c"}


def test_children_do_not_repeat_what_the_supervisor_has_buffered(run_supervised: Run) -> None:
    supervised = run_supervised("""
        print(json.dumps({"event": "hello", "name": ""}))
        children = [ChildSpec("a", serve)]
    """)
    supervised.until("all ready")
    os.kill(supervised.process.pid, signal.SIGTERM)
    _, events, _ = supervised.end()
    assert events.count(("hello", "")) == 1


def test_sigterm_before_a_role_handles_it_is_a_clean_end(run_supervised: Run) -> None:
    supervised = run_supervised("""
        children = [ChildSpec("slow", lambda life: signal.pause())]
    """)
    supervised.until("started", "slow")
    os.kill(supervised.process.pid, signal.SIGTERM)
    assert supervised.end()[0] == Exit.CLEAN


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

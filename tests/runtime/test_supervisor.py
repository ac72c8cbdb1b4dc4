"""The supervisor with real processes: each test runs one in an interpreter of its own.

A scenario is a piece of code that defines `children` and `options`. The supervisor's events come
out as JSON lines, and so does what the roles say; every wait for a line is bounded.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from minibroker.runtime.child import ChildSpec
from minibroker.runtime.supervisor import Exit, supervise

PATIENCE_S = 20.0
ROOT = Path(__file__).parents[2]

PROLOGUE = """
import gc, json, os, random, select, signal, sys, threading
from minibroker.runtime.child import ChildSpec
from minibroker.runtime.restarts import RestartPolicy
from minibroker.runtime.supervisor import supervise

def say(**line):
    os.write(1, json.dumps(line).encode() + b"\\n")

def report(event):
    say(event=event.kind.value, name=event.name, pid=event.pid,
        incarnation=event.incarnation, text=event.text)

def serve(life):
    "Gets ready, then waits for SIGTERM or for the supervisor's death."
    ended_read, ended_write = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(ended_write, b"!"))
    life.ready()
    select.select([ended_read, life.lifeline_fd], [], [])
    say(event="left", name=life.name, pid=os.getpid())

def stuck(life):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    life.ready()
    while True:
        signal.pause()

options = {"stop_groups": []}
"""

EPILOGUE = """
sys.exit(supervise(
    children, on_ready=lambda: say(event="all ready", name=""), on_event=report, **options
))
"""


class Supervised:
    """A supervisor in a process of its own, and the lines that came out of it."""

    def __init__(self, scenario: str) -> None:
        code = PROLOGUE + textwrap.dedent(scenario) + EPILOGUE
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.seen: list[dict[str, Any]] = []
        self._rest = b""

    def lines(self) -> Iterator[dict[str, Any]]:
        """New lines until the last process that could write has gone."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while True:
            while b"\n" in self._rest:
                text, self._rest = self._rest.split(b"\n", 1)
                self.seen.append(json.loads(text))
                yield self.seen[-1]
            ready = select.select([fd], [], [], PATIENCE_S)[0]
            assert ready, f"nothing more within {PATIENCE_S} s after {self.seen}"
            received = os.read(fd, 65536)
            if not received:
                return
            self._rest += received

    def until(self, event: str, name: str = "") -> dict[str, Any]:
        for line in self.lines():
            if line["event"] == event and line["name"] == name:
                return line
        raise AssertionError(f"no {event!r} of {name!r} in {self.seen}: {self.errors()}")

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def end(self) -> tuple[int, list[tuple[str, str]], str]:
        """Exit status, all (event, name), and what was on stderr."""
        for _ in self.lines():
            pass
        errors = self.errors()
        status = self.process.wait(PATIENCE_S)
        return status, [(line["event"], line["name"]) for line in self.seen], errors


@pytest.fixture
def run() -> Iterator[Callable[[str], Supervised]]:
    started: list[Supervised] = []

    def start(scenario: str) -> Supervised:
        started.append(Supervised(scenario))
        return started[-1]

    yield start
    for supervised in started:
        with suppress(ProcessLookupError):
            os.killpg(supervised.process.pid, signal.SIGKILL)
        supervised.process.wait(PATIENCE_S)
        for stream in (supervised.process.stdout, supervised.process.stderr):
            assert stream is not None
            stream.close()


Run = Callable[[str], Supervised]


def test_roles_end_group_by_group_and_the_exit_is_clean(run: Run) -> None:
    supervised = run("""
        children = [ChildSpec(name, serve) for name in ("worker", "stray", "front", "worker2")]
        options = {"stop_groups": [["front"], ["worker", "worker2"]]}
    """)
    supervised.until("all ready")
    assert {(e["event"], e["name"]) for e in supervised.seen} >= {
        (kind, name) for kind in ("started", "ready") for name in ("worker", "stray", "front")
    }
    os.kill(supervised.process.pid, signal.SIGTERM)
    assert supervised.until("stopping")["text"] == "SIGTERM"
    status, events, errors = supervised.end()
    assert (status, errors) == (Exit.CLEAN, "")
    ended = [name for event, name in events if event == "ended"]
    assert ended[0] == "front"
    assert set(ended[1:3]) == {"worker", "worker2"}
    assert ended[3] == "stray"
    assert events.index(("left", "worker")) > events.index(("ended", "front"))
    assert events.index(("left", "stray")) > events.index(("ended", ended[2]))


def test_ctrl_c_reaches_only_the_supervisor(run: Run) -> None:
    """A terminal sends SIGINT to the whole group; the roles still end in order, by SIGTERM."""
    supervised = run("""
        children = [ChildSpec("a", serve), ChildSpec("b", serve)]
        options = {"stop_groups": [["b"], ["a"]]}
    """)
    supervised.until("all ready")
    os.killpg(supervised.process.pid, signal.SIGINT)
    status, events, errors = supervised.end()
    assert (status, errors) == (Exit.CLEAN, "")
    assert [name for event, name in events if event == "left"] == ["b", "a"]


def test_a_killed_role_is_restarted_and_the_others_can_read_it(run: Run) -> None:
    supervised = run("""
        def watch(life):
            "Says the table whenever it is poked."
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
            life.ready()
            while signal.sigwait([signal.SIGUSR1, signal.SIGTERM]) == signal.SIGUSR1:
                say(event="table", name="", rows=life.roles.read())

        children = [ChildSpec("a", serve), ChildSpec("watch", watch)]
    """)
    supervised.until("all ready")
    first, watcher = (
        next(line for line in supervised.seen if line["name"] == name) for name in ("a", "watch")
    )
    os.kill(first["pid"], signal.SIGKILL)
    died = supervised.until("died", "a")
    assert (died["pid"], died["text"]) == (first["pid"], "signal 9 (SIGKILL)")
    second = supervised.until("ready", "a")
    assert second["pid"] != first["pid"]
    assert second["incarnation"] == 2
    os.kill(watcher["pid"], signal.SIGUSR1)
    rows = supervised.until("table")["rows"]
    assert rows[0] == ["a", second["pid"], 2, 2, 1, "signal 9 (SIGKILL)"]
    assert rows[1] == ["watch", watcher["pid"], 1, 2, 0, None]
    os.kill(supervised.process.pid, signal.SIGTERM)
    assert supervised.end()[0] == Exit.CLEAN


def test_a_role_that_returns_unasked_is_restarted(run: Run) -> None:
    supervised = run("""
        def main(life):
            if life.incarnation > 1:
                return serve(life)
            life.ready()

        children = [ChildSpec("a", main)]
    """)
    assert supervised.until("died", "a")["text"] == "exit status 0"
    supervised.until("ready", "a")


def test_a_crash_loop_ends_with_an_error_that_names_the_culprit(run: Run) -> None:
    supervised = run("""
        def crash(life):
            life.ready()
            raise SystemExit(7)

        children = [ChildSpec("good", serve), ChildSpec("bad", crash)]
        options["restart_policy"] = RestartPolicy(3, 60, 0.001, 0.001)
    """)
    status, events, errors = supervised.end()
    assert status == Exit.CRASH_LOOP
    assert events.count(("started", "bad")) == 4
    assert ("left", "good") in events
    assert "bad died too often, the last time with exit status 7 in its incarnation 4" in errors


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("raise SystemExit('port 9092 is taken')", "bad: port 9092 is taken\n"),
        ("raise OSError('no such device')", "OSError: no such device"),
        ("os.kill(os.getpid(), 11)", "bad did not start: signal 11 (SIGSEGV)"),
        ("return 5", "bad did not start: exit status 5"),
    ],
)
def test_a_failed_start_says_why_and_takes_all_down(run: Run, failure: str, message: str) -> None:
    supervised = run(f"""
        def main(life):
            {failure}

        children = [ChildSpec("good", serve), ChildSpec("bad", main)]
    """)
    status, events, errors = supervised.end()
    assert status == Exit.FAILED
    assert message in errors
    assert "minibroker stops: bad did not start" in errors
    assert events.count(("started", "bad")) == 1, "there is no restart loop"
    assert ("ended", "good") in events
    assert ("all ready", "") not in events


def test_a_start_that_takes_too_long_fails(run: Run) -> None:
    supervised = run("""
        children = [ChildSpec("good", serve), ChildSpec("slow", lambda life: signal.pause())]
        options["start_seconds"] = 0.2
    """)
    status, _, errors = supervised.end()
    assert status == Exit.FAILED
    assert "slow did not get ready in time" in errors


def test_who_does_not_end_is_killed_and_does_not_use_up_the_time_of_others(run: Run) -> None:
    supervised = run("""
        children = [ChildSpec("stuck", stuck), ChildSpec("good", serve)]
        options = {"stop_groups": [["stuck"], ["good"]], "drain_seconds": 0.4}
    """)
    supervised.until("all ready")
    os.kill(supervised.process.pid, signal.SIGTERM)
    status, events, _ = supervised.end()
    assert status == Exit.FAILED
    assert events.index(("left", "good")) < events.index(("killed", "stuck"))
    assert events[-1] == ("ended", "stuck")


def test_a_failure_while_ending_is_not_a_clean_end(run: Run) -> None:
    supervised = run("""
        def main(life):
            serve(life)
            return 4

        children = [ChildSpec("a", main)]
    """)
    supervised.until("all ready")
    os.kill(supervised.process.pid, signal.SIGTERM)
    assert supervised.end()[0] == Exit.FAILED


def test_sigterm_before_a_role_handles_it_is_a_clean_end(run: Run) -> None:
    supervised = run("""
        children = [ChildSpec("slow", lambda life: signal.pause())]
    """)
    supervised.until("started", "slow")
    os.kill(supervised.process.pid, signal.SIGTERM)
    assert supervised.end()[0] == Exit.CLEAN


def test_a_role_waiting_for_its_restart_is_not_restarted_while_stopping(run: Run) -> None:
    supervised = run("""
        children = [ChildSpec("good", serve), ChildSpec("bad", lambda life: life.ready())]
        options["restart_policy"] = RestartPolicy(9, 9999, 1000, 1000)
    """)
    supervised.until("died", "bad")
    supervised.until("died", "bad")
    os.kill(supervised.process.pid, signal.SIGTERM)
    status, events, _ = supervised.end()
    assert status == Exit.CLEAN
    assert events.count(("started", "bad")) == 2


def test_children_notice_a_killed_supervisor(run: Run) -> None:
    """Also the older siblings: no later child may hold the lifeline's other end open."""
    supervised = run("""
        children = [ChildSpec(name, serve) for name in ("a", "b", "c")]
    """)
    supervised.until("all ready")
    supervised.process.kill()
    _, events, _ = supervised.end()
    assert {name for event, name in events if event == "left"} == {"a", "b", "c"}


def test_a_child_holds_only_its_ends_and_its_own_signals(run: Run) -> None:
    supervised = run("""
        def main(life):
            fds = {int(fd) for fd in os.listdir("/proc/self/fd")} - {0, 1, 2}
            fds -= {fd for fd in fds if not os.path.exists(f"/proc/self/fd/{fd}")}
            say(event="facts", name=life.name, fds=sorted(fds - {life.lifeline_fd, life.ready_fd}),
                wakeup=signal.set_wakeup_fd(-1),
                blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
                term=signal.getsignal(signal.SIGTERM), int=signal.getsignal(signal.SIGINT),
                frozen=gc.get_freeze_count() > 1000, random=random.random(),
                title=open("/proc/self/comm").read().strip())
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
    assert facts[0]["random"] != facts[1]["random"]


def test_a_failing_callback_leaves_no_process_behind(run: Run) -> None:
    supervised = run("""
        children = [ChildSpec("stuck", stuck)]
        tell = report

        def report(event):
            tell(event)
            if event.kind.value == "ready":
                raise RuntimeError("the callback failed")
    """)
    pid = supervised.until("ready", "stuck")["pid"]
    status, _, errors = supervised.end()
    assert status == 1
    assert "RuntimeError: the callback failed" in errors
    assert not Path(f"/proc/{pid}").exists()


def test_an_ignored_hangup_stays_ignored(run: Run) -> None:
    supervised = run("""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        children = [ChildSpec("a", serve)]
    """)
    supervised.until("all ready")
    os.killpg(supervised.process.pid, signal.SIGHUP)
    os.kill(supervised.process.pid, signal.SIGTERM)
    assert supervised.until("stopping")["text"] == "SIGTERM"
    assert supervised.end()[0] == Exit.CLEAN


def test_the_caller_gets_its_signal_handling_back(run: Run) -> None:
    supervised = run("""
        children = [ChildSpec("a", serve)]
        before = signal.getsignal(signal.SIGINT)
        fds = os.listdir("/proc/self/fd")
        supervise(
            children, on_event=report, on_ready=lambda: os.kill(os.getpid(), 15), **options
        )
        say(event="back", name="", same=signal.getsignal(signal.SIGINT) is before
            and len(os.listdir("/proc/self/fd")) == len(fds))
        sys.exit(0)
    """)
    assert supervised.until("back")["same"]


def test_a_process_with_threads_is_refused(run: Run) -> None:
    supervised = run("""
        children = [ChildSpec("a", serve)]
        threading.Thread(target=threading.Event().wait, name="a-thread", daemon=True).start()
    """)
    status, events, errors = supervised.end()
    assert status == 1
    assert events == [], "nothing was forked"
    assert "runs 2 threads (MainThread, a-thread among them)" in errors


def test_a_stop_group_must_name_children() -> None:
    with pytest.raises(ValueError, match="'nobody'"):
        supervise(
            [ChildSpec("a", lambda life: 0)],
            stop_groups=[["nobody"]],
            on_ready=lambda: None,
            on_event=lambda event: None,
        )

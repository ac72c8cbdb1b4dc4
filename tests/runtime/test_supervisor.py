"""The supervisor with real processes, in an interpreter of its own for each test."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from minibroker.runtime.supervisor import (
    SWITCH_INTERVAL_S,
    ChildSpec,
    Exit,
    clear_type_cache,
    is_orphan,
    supervise,
    wait_until_gone,
)

if TYPE_CHECKING:
    from tests.runtime.conftest import Run


# ------------------------------------ What a forked process keeps of its parent, and what it closes


@pytest.mark.linux
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


@pytest.mark.linux
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


def test_roles_end_group_by_group_and_the_exit_is_clean(run_supervised: Run) -> None:
    supervised = run_supervised("""
        children = [ChildSpec(name, serve) for name in ("worker", "stray", "front", "worker2")]
        options["stop_groups"] = [["front"], ["worker", "worker2"]]
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


def test_ctrl_c_reaches_only_the_supervisor(run_supervised: Run) -> None:
    """A terminal sends SIGINT to the whole group; the roles still end in order, by SIGTERM."""
    supervised = run_supervised("""
        children = [ChildSpec("a", serve), ChildSpec("b", serve)]
        options["stop_groups"] = [["b"], ["a"]]
    """)
    supervised.until("all ready")
    os.killpg(supervised.process.pid, signal.SIGINT)
    status, events, errors = supervised.end()
    assert (status, errors) == (Exit.CLEAN, "")
    assert [name for event, name in events if event == "left"] == ["b", "a"]


def test_killed_role_is_restarted_and_readable_by_others(run_supervised: Run) -> None:
    supervised = run_supervised("""
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


def test_role_that_returns_early_is_restarted(run_supervised: Run) -> None:
    supervised = run_supervised("""
        def main(life):
            if life.incarnation > 1:
                return serve(life)
            life.ready()

        children = [ChildSpec("a", main)]
    """)
    assert supervised.until("died", "a")["text"] == "exit status 0"
    supervised.until("ready", "a")


def test_crash_loop_ends_with_an_error_that_names_the_culprit(run_supervised: Run) -> None:
    supervised = run_supervised("""
        gate_read, gate_write = os.pipe()
        send = report

        def report(event):
            send(event)
            if (event.kind.value, event.name) == ("ready", "good"):
                os.write(gate_write, b"!!!!")

        def crash(life):
            life.ready()
            os.read(gate_read, 1)
            raise SystemExit(7)

        children = [ChildSpec("good", serve), ChildSpec("bad", crash)]
        options["restart_policy"] = RestartPolicy(3, 60, 0.001, 0.001)
    """)
    status, events, errors = supervised.end()
    assert status == Exit.CRASH_LOOP
    assert events.count(("started", "bad")) == 4
    assert ("left", "good") in events
    assert "bad died too often, the last time with exit status 7 in its incarnation 4" in errors


def test_crash_loop_of_optional_role_does_not_stop_others(run_supervised: Run) -> None:
    supervised = run_supervised("""
        def crash(life):
            if life.incarnation > 6:
                return serve(life)  # A crash while all end would be no clean end.
            life.ready()
            raise SystemExit(7)

        children = [ChildSpec("good", serve), ChildSpec("bad", crash, is_optional=True)]
        options["restart_policy"] = RestartPolicy(3, 60, 0.001, 0.001)
    """)
    for _ in range(5):
        supervised.until("died", "bad")
    assert supervised.until("died", "bad")["text"] == (
        "exit status 7; the broker keeps running and restarts it in 0.16 s"
    )
    os.kill(supervised.process.pid, signal.SIGTERM)
    assert supervised.end()[0] == Exit.CLEAN


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("raise SystemExit('port 9092 is taken')", "bad: port 9092 is taken\n"),
        ("raise OSError('no such device')", "OSError: no such device"),
        ("os.kill(os.getpid(), 11)", "bad did not start: signal 11 (SIGSEGV)"),
        ("return 5", "bad did not start: exit status 5"),
    ],
)
def test_failed_start_is_reported_and_stops_all_roles(
    run_supervised: Run, failure: str, message: str
) -> None:
    supervised = run_supervised(f"""
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


def test_start_that_takes_too_long_fails(run_supervised: Run) -> None:
    supervised = run_supervised("""
        children = [ChildSpec("good", serve), ChildSpec("slow", lambda life: signal.pause())]
        options["start_seconds"] = 0.2
    """)
    status, _, errors = supervised.end()
    assert status == Exit.FAILED
    assert "slow did not get ready in time" in errors


def test_hanging_role_is_killed_within_its_share_of_the_time(
    run_supervised: Run,
) -> None:
    supervised = run_supervised("""
        from types import SimpleNamespace
        from minibroker.runtime import supervisor

        now, send = 0.0, report
        supervisor.time = SimpleNamespace(monotonic=lambda: now)

        def report(event):
            "Turns the clock: half of the time is over at once, all of it when the good one ended."
            global now
            send(event)
            if event.kind.value in ("stopping", "ended"):
                now += DRAIN_S / 2

        children = [ChildSpec("stuck", stuck), ChildSpec("good", serve)]
        options["stop_groups"] = [["stuck"], ["good"]]
    """)
    supervised.until("all ready")
    os.kill(supervised.process.pid, signal.SIGTERM)
    status, events, _ = supervised.end()
    assert status == Exit.FAILED
    assert events.index(("left", "good")) < events.index(("killed", "stuck"))
    assert events[-1] == ("ended", "stuck")


def test_failure_while_ending_is_a_death_and_no_clean_end(run_supervised: Run) -> None:
    supervised = run_supervised("""
        def main(life):
            serve(life)
            return 4

        children = [ChildSpec("a", main)]
    """)
    supervised.until("all ready")
    os.kill(supervised.process.pid, signal.SIGTERM)
    assert supervised.until("died", "a")["text"] == "exit status 4"
    assert supervised.end()[0] == Exit.FAILED


def test_role_waiting_for_its_restart_is_not_restarted_while_stopping(
    run_supervised: Run,
) -> None:
    supervised = run_supervised("""
        children = [ChildSpec("good", serve), ChildSpec("bad", lambda life: life.ready())]
        options["restart_policy"] = RestartPolicy(9, 9999, 1000, 1000)
    """)
    supervised.until("died", "bad")
    supervised.until("died", "bad")
    os.kill(supervised.process.pid, signal.SIGTERM)
    status, events, _ = supervised.end()
    assert status == Exit.CLEAN
    assert events.count(("started", "bad")) == 2


def test_role_that_dies_right_after_ready_has_started(run_supervised: Run) -> None:
    supervised = run_supervised("""
        gate_read, gate_write = os.pipe()

        def brief(life):
            os.read(gate_read, 1)
            life.ready()

        def waitpid(pid, options, real=os.waitpid):
            # The supervisor has looked for who is ready, and not yet for who is dead.
            os.waitpid = real
            os.write(gate_write, b"!")
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            return real(pid, options)

        children = [ChildSpec("brief", brief), ChildSpec("good", serve)]
        options["restart_policy"] = RestartPolicy(9, 9999, 1000, 1000)
        os.waitpid = waitpid
    """)
    supervised.until("died", "brief")
    os.kill(supervised.process.pid, signal.SIGTERM)
    status, events, errors = supervised.end()
    assert events.index(("ready", "brief")) < events.index(("died", "brief"))
    assert (status, errors) == (Exit.CLEAN, "")


def test_failing_callback_leaves_no_process_behind(run_supervised: Run) -> None:
    supervised = run_supervised("""
        children = [ChildSpec("stuck", stuck)]
        send = report

        def report(event):
            send(event)
            if event.kind.value == "ready":
                raise RuntimeError("the callback failed")
    """)
    pid = supervised.until("ready", "stuck")["pid"]
    status, _, errors = supervised.end()
    assert status == 1
    assert "RuntimeError: the callback failed" in errors
    assert not Path(f"/proc/{pid}").exists()


def test_end_of_a_pipe_at_standard_input_stops_all_roles(run_supervised: Run) -> None:
    supervised = run_supervised("""
        reading, writing = os.pipe()
        os.write(writing, b"what a parent sends is ignored")
        os.dup2(reading, 0)
        options["parent_pid"] = os.getppid()

        def main(life):
            os.close(writing)
            serve(life)

        def report(event, send=report):
            send(event)
            if event.kind.value == "ready":
                os.close(writing)

        children = [ChildSpec("a", main)]
    """)
    assert supervised.until("stopping")["text"] == "end of standard input"
    assert supervised.end()[0] == Exit.CLEAN


@pytest.mark.parametrize(
    ("parent_pid", "standard_input"),
    [
        ("None", "reading"),
        ("os.getppid()", "os.open(os.devnull, os.O_RDONLY)"),
    ],
    ids=["ended pipe without parent", "no pipe"],
)
def test_other_standard_input_stops_nothing(
    run_supervised: Run, parent_pid: str, standard_input: str
) -> None:
    supervised = run_supervised(f"""
        reading, writing = os.pipe()
        os.close(writing)
        os.dup2({standard_input}, 0)
        options["parent_pid"] = {parent_pid}
        children = [ChildSpec("a", serve)]
    """)
    supervised.until("all ready")
    os.kill(supervised.process.pid, signal.SIGTERM)
    assert supervised.until("stopping")["text"] == "SIGTERM"
    assert supervised.end()[0] == Exit.CLEAN


def test_end_of_the_parent_stops_all_roles(run_supervised: Run) -> None:
    supervised = run_supervised("""
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        options["parent_pid"] = os.getpid()
        if os.fork():
            signal.pause()
        children = [ChildSpec("a", serve)]
    """)
    supervised.until("all ready")
    supervised.process.kill()
    assert supervised.until("stopping")["text"] == "end of the parent process"
    assert ("left", "a") in supervised.end()[1]


def test_ignored_sighup_stays_ignored(run_supervised: Run) -> None:
    supervised = run_supervised("""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        children = [ChildSpec("a", serve)]
    """)
    supervised.until("all ready")
    os.killpg(supervised.process.pid, signal.SIGHUP)
    os.kill(supervised.process.pid, signal.SIGTERM)
    assert supervised.until("stopping")["text"] == "SIGTERM"
    end = supervised.end()
    assert end[0] == Exit.CLEAN, end


def test_signal_handlers_of_caller_are_restored(run_supervised: Run) -> None:
    supervised = run_supervised("""
        children = [ChildSpec("a", serve)]
        before = signal.getsignal(signal.SIGINT)
        fds = os.listdir("/dev/fd")
        supervise(
            children, on_event=report, on_ready=lambda: os.kill(os.getpid(), 15), **options
        )
        say(event="back", name="", same=signal.getsignal(signal.SIGINT) is before
            and len(os.listdir("/dev/fd")) == len(fds))
        sys.exit(0)
    """)
    assert supervised.until("back")["same"]


def test_process_with_threads_is_rejected(run_supervised: Run) -> None:
    supervised = run_supervised("""
        children = [ChildSpec("a", serve)]
        threading.Thread(target=threading.Event().wait, name="a-thread", daemon=True).start()
    """)
    status, events, errors = supervised.end()
    assert status == 1
    assert events == [], "nothing was forked"
    assert "runs 2 threads (MainThread, a-thread among them)" in errors


def test_stop_group_must_name_children() -> None:
    with pytest.raises(ValueError, match="'nobody'"):
        supervise(
            [ChildSpec("a", lambda life: 0)],
            stop_groups=[["nobody"]],
            on_ready=lambda: None,
            on_event=lambda event: None,
        )


def test_type_cache_is_cleared_by_its_name_of_newer_pythons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []
    clear = partial(called.append, "new")
    monkeypatch.setattr(sys, "_clear_internal_caches", clear, raising=False)
    clear_type_cache()
    assert called == ["new"]

"""The supervisor: forks all other processes, monitors, restarts and stops them.

It must never run an event loop or a thread, or know what a role does, because it must not hang, and
only a process without threads can fork safely at any time. Invariant: every process that it forked
is reaped before `supervise` returns, and none outlives it, because each exits when the lifeline
closes. Kafka's `KafkaServer.startup` and `shutdown`, with the same order of stopping.
"""

from __future__ import annotations

import enum
import gc
import os
import select
import signal
import stat
import struct
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from minibroker.runtime.restarts import OPTIONAL, RestartPolicy, Restarts
from minibroker.runtime.roles import RoleTable, describe_exit
from minibroker.runtime.system import set_process_name, thread_count, wait_for_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


# ------------------------------- A forked process: from the fork to its role's function and its end
# It must never know what the role does, or run a loop: `main` starts its own. Invariant: a child
# ends by `os._exit` only, and nothing of its parent is active in it: no signal handler, no wake-up
# descriptor, no end of a pipe that reports a death. Like Kafka's `KafkaThread` (a name, and no
# silent death). A child whose supervisor was killed ends after ``ORPHAN_SECONDS_MAX`` at the
# latest.
#
# In a child SIGTERM has its default action until `main` handles it, and SIGINT and SIGHUP are
# ignored: a terminal sends them to the process group, but only the supervisor acts on them. Python
# seeds `random`'s shared generator after a fork. It does not seed trio's private one, so the loops
# of all children shuffle their tasks alike, which nothing may depend on.


ORPHAN_SECONDS_MAX: Final = 3
"""How long a role may take to end after its supervisor; then the system kills it."""


def is_orphan(lifeline: int) -> bool:
    """Whether the supervisor at the other end of the lifeline has ended."""
    readable, _, _ = select.select([lifeline], [], [], 0)
    return bool(readable)


def bound_last_seconds() -> None:
    """Let the system kill this process if it does not end by itself.

    The limit is in real time, because the broker's clock may be frozen.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(ORPHAN_SECONDS_MAX)


def wait_until_gone(pids: Iterable[int], seconds: float = ORPHAN_SECONDS_MAX) -> bool:
    """Wait for processes that need not be children; return whether all ended in time."""
    deadline = time.monotonic() + seconds
    return all(wait_for_process(pid, deadline - time.monotonic()) for pid in pids)


SWITCH_INTERVAL_S: Final = 0.0002
"""How long a thread of a role may keep the interpreter while another one waits for it (ADR 0024).

Python's default is 5 ms, and an event loop waits that long after each system call.
"""

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
READY_MESSAGE: Final = struct.Struct(
    "=II"
)  # role, incarnation: short enough to be written atomically

_NAME_PREFIX: Final = "mb-"  # short, because systems truncate names


@dataclass(frozen=True, slots=True)
class ChildContext:
    """Facts about its process that a role's `main` receives.

    `incarnation` counts from 1. `lifeline_fd` becomes readable (end of file) when the supervisor is
    gone: the role should then end as it does on SIGTERM.
    """

    name: str
    incarnation: int
    lifeline_fd: int
    roles: RoleTable
    index: int
    ready_fd: int

    def ready(self) -> None:
        """Report to the supervisor that this role is ready. Callable from any task, once."""
        # The supervisor has ended; the lifeline reports it to `main`.
        with suppress(BrokenPipeError):
            os.write(self.ready_fd, READY_MESSAGE.pack(self.index, self.incarnation))


class ChildSpec(NamedTuple):
    """A role to run. `main` returns its exit status (None is 0).

    If an optional role dies repeatedly, the others continue, and it is restarted less and less
    often; but the broker starts only if it becomes ready.

    `main` raising `SystemExit("text")` ends with status 1 and only the text on stderr, any other
    exception with status 1 and its traceback.
    """

    name: str
    main: Callable[[ChildContext], int | None]
    is_optional: bool = False


def run_child(spec: ChildSpec, context: ChildContext, close: Iterable[int]) -> NoReturn:
    """Run a freshly forked process to its end; `SIGNALS` are still blocked."""
    status = 1
    try:
        # The order matters: the parent's handlers and wake-up descriptor must be removed before a
        # signal is delivered, or the child's signals would be reported to the parent.
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            ignored = number in (signal.SIGINT, signal.SIGHUP)
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        for fd in close:
            os.close(fd)
        set_process_name(_NAME_PREFIX + spec.name)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        status = _run(spec, context)
    finally:
        with suppress(OSError, ValueError):  # a closed or broken stdout must not block the end
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _run(spec: ChildSpec, context: ChildContext) -> int:
    try:
        return spec.main(context) or 0
    except SystemExit as exit_request:
        if exit_request.code is None or isinstance(exit_request.code, int):
            return exit_request.code or 0
        sys.stderr.write(f"{spec.name}: {exit_request.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - the last stop: above is only os._exit
        sys.stderr.write(f"{spec.name} (pid {os.getpid()}) failed:\n{traceback.format_exc()}")
        return 1


START_SECONDS_MAX: Final = 120.0
"""A hundred times what a start takes: on a machine with a load of ten for each core, a role whose
libraries are not in the file cache takes longer than half a minute. One that dies ends it at once.
"""
DRAIN_SECONDS: Final = 8.0
"""Less than the ten seconds that container tools wait, and more than healthy roles need on two
busy cores: a killed role cannot finish its work.
"""
KILL_SECONDS_MAX: Final = 5.0
"""How long to wait for the end of a killed process, which can hang in the kernel."""
PARENT_SECONDS: Final = 0.5
"""How often to check whether the parent has ended, which no system reports in the same way."""
_STDIN: Final = 0
_STDIN_BYTES: Final = 65536


def clear_type_cache() -> None:
    """Empty the interpreter's cache of type attributes; Python 3.13 has a new name for it."""
    # Documented for such purposes, in spite of their underscores.
    clear = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache  # noqa: SLF001
    clear()


class Exit(enum.IntEnum):
    """Exit status of the program, returned by `supervise`."""

    CLEAN = 0
    """All roles stopped in time."""

    FAILED = 1
    """A role failed to start, failed while stopping, or had to be killed."""

    CRASH_LOOP = 3
    """A role died too often."""


class ProcessEventKind(enum.Enum):
    """Events that the supervisor reports."""

    STARTED = "started"
    READY = "ready"
    DIED = "died"
    STOPPING = "stopping"
    ENDED = "ended"
    KILLED = "killed"
    GAVE_UP = "gave up"


class ProcessEvent(NamedTuple):
    """One event; `name` is empty and `pid` 0 if it concerns all roles."""

    kind: ProcessEventKind
    name: str
    pid: int
    incarnation: int
    text: str


class _Phase(enum.Enum):
    STARTING = enum.auto()
    RUNNING = enum.auto()
    STOPPING = enum.auto()


class _Role:
    def __init__(self, index: int, spec: ChildSpec, policy: RestartPolicy) -> None:
        self.index = index
        self.spec = spec
        self.restarts = Restarts(OPTIONAL if spec.is_optional else policy)
        self.pid = 0
        self.incarnation = 0
        self.is_ready = False
        self.was_ready = False
        self.was_killed = False
        self.restart_at: float | None = None


def supervise(
    children: Sequence[ChildSpec],
    *,
    stop_groups: Sequence[Sequence[str]],
    on_ready: Callable[[], None],
    on_event: Callable[[ProcessEvent], None],
    drain_seconds: float = DRAIN_SECONDS,
    start_seconds: float = START_SECONDS_MAX,
    restart_policy: RestartPolicy | None = None,
    parent_pid: int | None = None,
) -> int:
    """Run `children` until a SIGTERM, SIGINT or SIGHUP; return an `Exit`.

    All are forked at once; `on_ready` is called when all have reported `ready`. The start fails if
    one dies before its first `ready`, or takes longer than `start_seconds`. Later, a role that dies
    is restarted by `restart_policy`; too many deaths stop all roles.

    Stopping sends SIGTERM to one of the `stop_groups` after the other, when the previous one has
    ended or has used its share of `drain_seconds`; roles in no group are stopped last. Processes
    that are alive after `drain_seconds` are killed. Further signals are ignored: some tools send
    them twice. A signal that the caller ignores (`nohup`) stays ignored. Must be called in the main
    thread of a process without other threads.

    With `parent_pid`, the end of that parent stops all roles like a signal, and so does the end of
    standard input if it is a pipe: it reports also the end of a process that holds the other end
    and started this one through another program.
    """
    names = [spec.name for spec in children]
    unknown = {name for group in stop_groups for name in group} - set(names)
    if unknown:
        raise ValueError(f"stop_groups name {sorted(unknown)}, which are not among {names}")
    _check_single_threaded()
    supervisor = _Supervisor(
        children=children,
        stop_groups=stop_groups,
        on_ready=on_ready,
        on_event=on_event,
        drain_seconds=drain_seconds,
        policy=restart_policy or RestartPolicy(),
        parent_pid=parent_pid,
    )
    try:
        # Parent and children share the pages of objects that are not written to. The garbage
        # collector does not write to frozen objects. The cache of attributes contains references
        # to names: each replaced entry would write to the page of a name that is unused otherwise.
        clear_type_cache()
        gc.freeze()
        return supervisor.run(start_seconds)
    finally:
        supervisor.close()
        gc.unfreeze()


class _Supervisor:
    def __init__(
        self,
        *,
        children: Sequence[ChildSpec],
        stop_groups: Sequence[Sequence[str]],
        on_ready: Callable[[], None],
        on_event: Callable[[ProcessEvent], None],
        drain_seconds: float,
        policy: RestartPolicy,
        parent_pid: int | None,
    ) -> None:
        self._table = RoleTable([spec.name for spec in children])
        self._roles = [_Role(index, spec, policy) for index, spec in enumerate(children)]
        by_name = {role.spec.name: role for role in self._roles}
        groups = [[by_name[name] for name in group] for group in stop_groups]
        grouped = {name for group in stop_groups for name in group}
        groups.append([role for role in self._roles if role.spec.name not in grouped])
        self._groups = deque(groups)
        self._signalled: list[_Role] = []  # roles that received SIGTERM
        self._on_ready = on_ready
        self._on_event = on_event
        self._drain_seconds = drain_seconds
        self._parent_pid = parent_pid
        self._phase = _Phase.STARTING
        self._exit = Exit.CLEAN
        self._next_group_at = 0.0
        self._kill_at = 0.0
        self._lifeline_read, self._lifeline_write = os.pipe()
        self._ready_read, self._ready_write = os.pipe()
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._ready_read, self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._old_handlers = {
            number: signal.signal(number, _ignore_signal)
            for number in SIGNALS
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN
        }
        self._old_wake_fd = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def run(self, start_seconds: float) -> Exit:
        start_deadline = time.monotonic() + start_seconds
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        poll.register(self._ready_read, select.POLLIN)
        if self._parent_pid is not None and sys.__stdin__ is not None and _is_pipe(_STDIN):
            poll.register(_STDIN, select.POLLIN)
        for role in self._roles:
            self._start(role)
        while not self._is_finished(time.monotonic()):
            readable = poll.poll(self._timeout_ms(time.monotonic(), start_deadline))
            now = time.monotonic()
            self._read_signals(now)
            if any(fd == _STDIN for fd, _ in readable) and not _read_input():
                poll.unregister(_STDIN)
                self._stop(now, Exit.CLEAN, "end of standard input")
            if self._parent_pid not in (None, os.getppid()):
                self._stop(now, Exit.CLEAN, "end of the parent process")
            self._reap(now)
            self._read_ready()
            self._apply_deadlines(now, start_deadline)
        return self._exit

    def close(self) -> None:
        """Kill the remaining children and restore signal handling, even if a callback raised."""
        for role in self._roles:
            if role.pid:
                os.kill(role.pid, signal.SIGKILL)
        give_up_at = time.monotonic() + KILL_SECONDS_MAX
        for role in self._roles:
            while role.pid and time.monotonic() < give_up_at:
                if os.waitpid(role.pid, os.WNOHANG)[0]:
                    role.pid = 0
                else:
                    time.sleep(0.001)
        signal.set_wakeup_fd(self._old_wake_fd)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        for fd in (self._lifeline_read, self._ready_write, *self._private_fds()):
            os.close(fd)

    def _private_fds(self) -> tuple[int, ...]:
        """Descriptors that a child must close, or it would keep the lifeline open."""
        return (self._lifeline_write, self._ready_read, self._wake_read, self._wake_write)

    def _start(self, role: _Role) -> None:
        role.incarnation += 1
        role.is_ready = False
        role.restart_at = None
        _flush()  # otherwise the child would print the buffered output again
        context = ChildContext(
            name=role.spec.name,
            incarnation=role.incarnation,
            lifeline_fd=self._lifeline_read,
            roles=self._table,
            index=role.index,
            ready_fd=self._ready_write,
        )
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            role.pid = os.fork()
            if role.pid == 0:
                run_child(role.spec, context, self._private_fds())
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self._table.started(role.index, role.pid, role.incarnation)
        self._report(ProcessEventKind.STARTED, role)

    def _read_signals(self, now: float) -> None:
        with suppress(BlockingIOError):
            for number in os.read(self._wake_read, 4096):
                if number != signal.SIGCHLD:
                    self._stop(now, Exit.CLEAN, signal.Signals(number).name)

    def _read_ready(self) -> None:
        with suppress(BlockingIOError):
            received = os.read(self._ready_read, READY_MESSAGE.size * 512)
            for index, incarnation in READY_MESSAGE.iter_unpack(received):
                role = self._roles[index]
                if role.pid and incarnation == role.incarnation and not role.is_ready:
                    role.is_ready = role.was_ready = True
                    self._table.ready(index)
                    self._report(ProcessEventKind.READY, role)
        if self._phase is _Phase.STARTING and all(role.is_ready for role in self._roles):
            self._phase = _Phase.RUNNING
            self._on_ready()

    def _reap(self, now: float) -> None:
        for role in self._roles:
            if role.pid:
                pid, status = os.waitpid(role.pid, os.WNOHANG)
                if pid:
                    # A role that was ready before it died did start. The pipe contains all that it
                    # sent only after its death.
                    self._read_ready()
                    self._handle_exit(role, status, now)

    def _handle_exit(self, role: _Role, status: int, now: float) -> None:
        pid, role.pid, role.is_ready = role.pid, 0, False
        text = describe_exit(status)
        if self._phase is _Phase.STOPPING:
            self._table.ended(role.index, status, restarts=False)
            # SIGTERM may arrive before the role has a handler: its default action is a clean end.
            is_clean = os.waitstatus_to_exitcode(status) in (0, -signal.SIGTERM)
            if not is_clean:
                self._exit = self._exit or Exit.FAILED
            died = not is_clean and not role.was_killed
            self._report(ProcessEventKind.DIED if died else ProcessEventKind.ENDED, role, text, pid)
            return
        failed_start = self._phase is _Phase.STARTING and not role.was_ready
        delay = None if failed_start else role.restarts.died(now)
        restart = (
            f"; the broker keeps running and restarts it in {delay} s"
            if role.spec.is_optional
            else ""
        )
        self._report(
            ProcessEventKind.DIED, role, text if delay is None else f"{text}{restart}", pid
        )
        self._table.ended(role.index, status, restarts=delay is not None)
        if delay is not None:
            role.restart_at = now + delay
        elif failed_start:
            self._give_up(now, Exit.FAILED, f"{role.spec.name} did not start: {text}")
        else:
            self._give_up(
                now,
                Exit.CRASH_LOOP,
                f"{role.spec.name} died too often, the last time with {text} "
                f"in its incarnation {role.incarnation}",
            )

    def _apply_deadlines(self, now: float, start_deadline: float) -> None:
        if self._phase is _Phase.STARTING and now >= start_deadline:
            unready = [role.spec.name for role in self._roles if not role.is_ready]
            self._give_up(now, Exit.FAILED, f"{', '.join(unready)} did not get ready in time")
        if self._phase is _Phase.STOPPING:
            self._drain(now)
            return
        for role in self._roles:
            if role.restart_at is not None and now >= role.restart_at:
                self._start(role)

    def _give_up(self, now: float, code: Exit, text: str) -> None:
        sys.stderr.write(f"minibroker stops: {text}\n")
        self._report(ProcessEventKind.GAVE_UP, None, text)
        self._stop(now, code, text)

    def _stop(self, now: float, code: Exit, text: str) -> None:
        if self._phase is _Phase.STOPPING:
            return
        self._phase = _Phase.STOPPING
        self._exit = code
        self._next_group_at = now
        self._kill_at = now + self._drain_seconds
        self._report(ProcessEventKind.STOPPING, None, text)

    def _drain(self, now: float) -> None:
        if now >= self._kill_at:
            self._kill_the_rest()
            return
        while self._groups and (
            now >= self._next_group_at or not any(role.pid for role in self._signalled)
        ):
            group = self._groups.popleft()
            for role in group:
                if role.pid:
                    os.kill(role.pid, signal.SIGTERM)
            self._signalled += group
            # A group that hangs must not use up the time of later groups.
            self._next_group_at = now + (self._kill_at - now) / (len(self._groups) + 1)

    def _kill_the_rest(self) -> None:
        for role in self._roles:
            if role.pid and not role.was_killed:
                role.was_killed = True
                os.kill(role.pid, signal.SIGKILL)
                self._exit = self._exit or Exit.FAILED
                self._report(
                    ProcessEventKind.KILLED, role, f"it did not end in {self._drain_seconds} s"
                )

    def _is_finished(self, now: float) -> bool:
        return self._phase is _Phase.STOPPING and (
            not any(role.pid for role in self._roles) or now >= self._kill_at + KILL_SECONDS_MAX
        )

    def _timeout_ms(self, now: float, start_deadline: float) -> int | None:
        """Milliseconds until the supervisor's next deadline; None if there is none."""
        due = [role.restart_at for role in self._roles if role.restart_at is not None]
        if self._phase is _Phase.STARTING:
            due.append(start_deadline)
        if self._parent_pid is not None:
            due.append(time.monotonic() + PARENT_SECONDS)
        if self._phase is _Phase.STOPPING:
            due = [self._kill_at if now < self._kill_at else self._kill_at + KILL_SECONDS_MAX]
            if self._groups:
                due.append(self._next_group_at)
        if not due:
            return None
        return max(0, int((min(due) - now) * 1000) + 1)

    def _report(
        self, kind: ProcessEventKind, role: _Role | None, text: str = "", pid: int = 0
    ) -> None:
        if role is None:
            self._on_event(ProcessEvent(kind, "", 0, 0, text))
        else:
            self._on_event(
                ProcessEvent(kind, role.spec.name, pid or role.pid, role.incarnation, text)
            )


def _ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the wake-up descriptor is only written if there is a Python handler."""


def _is_pipe(fd: int) -> bool:
    """Whether a descriptor is a pipe; that of some languages is a socket."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _read_input() -> bytes:
    """Read what standard input has; nothing is its end."""
    try:
        return os.read(_STDIN, _STDIN_BYTES)
    except OSError:  # The other end of a socket was killed with bytes that it had not read.
        return b""


def _flush() -> None:
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()


def _check_single_threaded() -> None:
    """Raise if other threads run: a lock that they hold at a fork stays locked in the child."""
    count = thread_count()
    if count > 1:
        names = [thread.name for thread in threading.enumerate()]
        raise RuntimeError(
            f"this process runs {count} threads ({', '.join(names)} among them); fork the roles "
            f"before anything starts one"
        )

"""A forked process: from the fork to its role's function and its end.

It must never know what the role does, or run a loop: `main` starts its own. Invariant: a child ends
by `os._exit` only, and nothing of its parent is active in it: no signal handler, no wake-up
descriptor, no end of a pipe that reports a death. Like Kafka's `KafkaThread` (a name, and no silent
death). A child whose supervisor was killed ends after ``ORPHAN_SECONDS_MAX`` at the latest.

In a child SIGTERM has its default action until `main` handles it, and SIGINT and SIGHUP are
ignored: a terminal sends them to the process group, but only the supervisor acts on them. Python
seeds `random`'s shared generator after a fork. It does not seed trio's private one, so the loops of
all children shuffle their tasks alike, which nothing may depend on.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from minibroker.runtime.system import set_process_name, wait_for_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from minibroker.runtime.roles import RoleTable

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

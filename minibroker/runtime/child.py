"""A forked process's side: from the fork to its role's function and out again.

It must never know what the role does, nor run a loop: `main` starts its own.
Its invariant: a child leaves through `os._exit` only, with nothing of its parent's left running
in it: no signal handler, no wake-up descriptor, no end of a pipe that should tell of a death.
It echoes Kafka's `KafkaThread` (a name, and a death that is never silent).

In a child SIGTERM has its default action until `main` handles it, and SIGINT and SIGHUP are
ignored: a terminal sends them to the whole process group, but only the supervisor acts on them.
`random`'s shared generator is seeded anew by Python itself after a fork. Trio's private one
isn't, so sibling loops shuffle their tasks alike, which nothing may depend on anyway.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from minibroker.runtime.roles import RoleTable

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
READY_MESSAGE: Final = struct.Struct("=II")  # role, incarnation: written whole, being so short

_TITLE_MAX: Final = 15  # the kernel cuts a process's name there, so the prefix is short
_TITLE_PREFIX: Final = "mb-"


@dataclass(frozen=True, slots=True)
class ChildLife:
    """What a role's `main` gets: who it is, how to say that it serves, whom it lives with.

    `incarnation` counts from 1. `lifeline_fd` becomes readable (end of file) when the
    supervisor is gone: the role should then end as it does on SIGTERM.
    """

    name: str
    incarnation: int
    lifeline_fd: int
    roles: RoleTable
    index: int
    ready_fd: int

    def ready(self) -> None:
        """Tells the supervisor that this role serves. May be called from any task, once."""
        # Without a supervisor nobody listens; the lifeline tells `main` about that.
        with suppress(BrokenPipeError):
            os.write(self.ready_fd, READY_MESSAGE.pack(self.index, self.incarnation))


class ChildSpec(NamedTuple):
    """A role to run. `main` returns its exit status (None is 0). However often a `spare` one dies,
    the others go on, and it is restarted ever more seldom; only at the start it must come up.

    `main` raising `SystemExit("text")` ends with status 1 and just the text on stderr, any other
    exception with status 1 and its traceback.
    """

    name: str
    main: Callable[[ChildLife], int | None]
    spare: bool = False


def live(spec: ChildSpec, life: ChildLife, close: Iterable[int]) -> NoReturn:
    """The rest of a freshly forked process; its `SIGNALS` are still blocked."""
    status = 1
    try:
        # This order matters: the parent's handlers and wake-up descriptor go before any signal
        # can come in, or the child's signals would be reported to the parent.
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            ignored = number in (signal.SIGINT, signal.SIGHUP)
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        for fd in close:
            os.close(fd)
        _set_title(spec.name)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        status = _run(spec, life)
    finally:
        with suppress(OSError, ValueError):  # a closed or broken stdout is no reason to hang on
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _run(spec: ChildSpec, life: ChildLife) -> int:
    try:
        return spec.main(life) or 0
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        sys.stderr.write(f"{spec.name}: {leaving.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - the last stop: above is only os._exit
        sys.stderr.write(f"{spec.name} (pid {os.getpid()}) failed:\n{traceback.format_exc()}")
        return 1


def _set_title(name: str) -> None:
    """Names the process for `ps -e` and `top`."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as comm:
        comm.write((_TITLE_PREFIX + name)[:_TITLE_MAX])

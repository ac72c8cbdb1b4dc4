"""One core for a broker and its client, for the time of a measure.

Owns the affinity of processes and their threads. It must never know what is measured. Invariant:
afterwards every thread that is still there may use the same cores as before; threads that were
started meanwhile may use those of their process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from system_tests.harness.processes import tree


@contextmanager
def pinned(root: int) -> Iterator[None]:
    """Pin a process, everything descended from it and this process (for children) to one core."""
    ours = os.sched_getaffinity(0)
    core = {max(ours)}
    before = {thread: allowed for thread in threads(root) if (allowed := affinity(thread))}
    processes = {pid: affinity(pid) for pid in tree(root)}
    try:
        for thread in threads(root):
            set_affinity(thread, core)
        os.sched_setaffinity(0, core)
        yield
    finally:
        os.sched_setaffinity(0, ours)
        for pid in tree(root):
            for thread in threads_of(pid):
                set_affinity(thread, before.get(thread) or processes.get(pid) or ours)


def threads(root: int) -> list[int]:
    return [thread for pid in tree(root) for thread in threads_of(pid)]


def threads_of(pid: int) -> list[int]:
    try:
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


def affinity(thread: int) -> set[int]:
    """Return the cores that a thread may use, none if it has ended."""
    try:
        return os.sched_getaffinity(thread)
    except ProcessLookupError:
        return set()


def set_affinity(thread: int, cores: set[int]) -> None:
    with suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cores)

"""Memory and processor time of a process and all its child processes.

Owns the sums over a tree of processes (for example a JVM and its Python workers); memory is PSS, in
which shared memory counts once. It must never know what they do. Invariant: a process that has
ended counts nothing, but processor time of children that were waited for is kept.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

EVERY_S: Final = 0.25
_PARENT: Final = 1
_TIMES: Final = slice(11, 15)
"""User and system time, its own and that of children that it waited for."""


def tree_pss_mb(pid: int) -> float:
    """Memory of a process and all below it."""
    return sum(_pss_kb(one) for one in _tree(pid)) / 1024


def tree_cpu_s(pid: int) -> float:
    """Processor time that a process and all below it have had so far."""
    stats = (_stat(one) for one in _tree(pid))
    ticks = sum(sum(map(int, stat[_TIMES])) for stat in stats if stat)
    return ticks / os.sysconf("SC_CLK_TCK")


def _tree(pid: int) -> Iterator[int]:
    children = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        stat = _stat(int(folder.name))
        if stat:
            children[int(stat[_PARENT])].append(int(folder.name))
    left = [pid]
    while left:
        one = left.pop()
        left += children[one]
        yield one


def _stat(pid: int) -> list[str]:
    """The fields behind a process's name; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _pss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


class Peak:
    """The most that a tree of processes took while a block ran."""

    def __init__(self, pid: int) -> None:
        self.mb = 0.0
        self._pid = pid
        self._ended = threading.Event()
        self._looks = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.mb = max(self.mb, tree_pss_mb(self._pid))

    def __enter__(self) -> Self:
        self._looks.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._looks.join()

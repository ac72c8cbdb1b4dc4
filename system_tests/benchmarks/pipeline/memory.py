"""How much memory a process and all that it started take together, looked at again and again.

Owns the sum of PSS over a tree of processes (a JVM and its Python workers, say), in which what they
share counts once. It must never know what they do. Invariant: whoever is gone when it is looked at
counts nothing, and looking ends with the process.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import Self

EVERY_S = 0.25


def tree_pss_mb(pid: int) -> float:
    """Of a process and all below it."""
    children = defaultdict(list)
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            behind_name = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children[int(behind_name[1])].append(int(status.parent.name))
    found_kb, left = 0, [pid]
    while left:
        one = left.pop()
        left += children[one]
        found_kb += _pss_kb(one)
    return found_kb / 1024


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

"""Reads facts of processes from /proc: children, open files, leftovers.

Owns reading /proc and /dev/shm and nothing else; it never changes what it reads. Invariant: a
process that ends meanwhile counts as ended, never as an error.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def tree(root: int) -> list[int]:
    """Return `root` and everything descended from it, as far as it runs."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (parent := _parent(int(entry.name))) is not None:
            children[parent].append(int(entry.name))
    found = []
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if is_running(pid):
            found.append(pid)
        waiting += children[pid]
    return found


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in {"Z", "X"}


def _parent(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/pid/stat after the name, which may itself hold anything."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def open_files(pid: int) -> int:
    try:
        return len(os.listdir(PROC / str(pid) / "fd"))
    except OSError:
        return 0


def open_segments(pid: int) -> set[str]:
    """Return the log segments that a process has open, each once."""
    found = set()
    with suppress(OSError):
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                found.add(str(descriptor.readlink()))
    return {path for path in found if path.endswith(".log")}


def pss_bytes(pid: int) -> int:
    """Return the memory of a process, each shared page divided by its users."""
    return _rollup(pid, "Pss:")


def private_bytes(pid: int) -> int:
    """Return the memory that would be free again if the process ended."""
    return _rollup(pid, "Private_Clean:") + _rollup(pid, "Private_Dirty:")


def _rollup(pid: int, name: str) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def resident_bytes(pids: list[int]) -> int:
    """Return the memory of the processes together, shared pages once."""
    return sum(pss_bytes(pid) for pid in pids)


def held_paths(pid: int) -> set[Path]:
    """Return what a process has open or mapped in temporary folders, as entries of those.

    Deleted files and memory without a name need no cleanup.
    """
    folders = {Path(tempfile.gettempdir()).resolve(), Path("/dev/shm")}
    targets = []
    for name in ("fd", "map_files"):
        try:
            entries = list((PROC / str(pid) / name).iterdir())
        except OSError:
            continue
        for entry in entries:
            try:
                targets.append(Path(os.readlink(entry)))
            except OSError:
                continue
    return {
        folder / target.relative_to(folder).parts[0]
        for target in targets
        for folder in folders
        if target.is_relative_to(folder) and target.exists()
    }


def abandoned_segments() -> set[str]:
    """Return the ids of System V shared memory that has outlived the process that made it."""
    segments = PROC / "sysvipc" / "shm"
    if not segments.exists():
        return set()
    rows = [line.split() for line in segments.read_text().splitlines()[1:]]
    return {row[1] for row in rows if not is_running(int(row[4]))}

"""A faulty file system for a broker: ``faulty_disk.c`` and the rules that it shares with us.

Owns the shared file and its layout; which fault comes when is the round's to decide. The invariant:
a fault is in force from the moment that a method returns, in every process of the broker.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Final

from system_tests.harness.compiling import compiled

SOURCE: Final = Path(__file__).with_name("faulty_disk.c")

_FIELDS: Final = struct.Struct("<qqqq")
_PATH_MAX: Final = 4096
_INJECTED_POSITION: Final = 16


class Mode(IntEnum):
    """The faults, in the order of ``enum mode`` in C."""

    HEALTHY = 0
    FULL = 1
    """ENOSPC once so many bytes are written."""
    BROKEN = 2
    """EIO."""
    READ_ONLY = 3
    """EROFS."""
    SHORT_WRITES = 4
    """Every write takes half of what it is given."""
    TORN = 5
    """A process is killed in the middle of a write to a segment, once so many bytes are written."""
    FAILING_SYNC = 6
    """fsync fails with EIO."""


class FaultyDisk:
    """Rules for the files below a directory."""

    def __init__(self, file: Path, directory: Path) -> None:
        prefix = os.fsencode(directory) + b"/"
        file.write_bytes(_FIELDS.pack(0, 0, 0, 0) + prefix.ljust(_PATH_MAX, b"\0"))
        self._file = file
        with open(file, "r+b") as opened:
            self._rules = mmap.mmap(opened.fileno(), 0)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs in its environment to be affected."""
        library = compiled(SOURCE, "-shared", "-fPIC", "-ldl")
        return {"LD_PRELOAD": str(library), "FAULTY_DISK": str(self._file)}

    def set(self, mode: Mode, *, after_bytes: int = 0) -> None:
        """Put a fault in force, or end it with ``HEALTHY``."""
        struct.pack_into("<q", self._rules, 8, after_bytes)
        struct.pack_into("<q", self._rules, 0, mode)

    @property
    def mode(self) -> Mode:
        return Mode(struct.unpack_from("<q", self._rules, 0)[0])

    @property
    def injected(self) -> int:
        """How many calls have failed or were cut short."""
        return int(struct.unpack_from("<q", self._rules, _INJECTED_POSITION)[0])

    @property
    def torn(self) -> int:
        """How many processes were killed within a write."""
        return int(struct.unpack_from("<q", self._rules, _INJECTED_POSITION + 8)[0])

"""Masks secrets in this process's arguments, which every user of the machine can read.

Owns the arguments as the kernel shows them in ``/proc``. It must never know the purpose of a
secret. Invariant: a masked argument keeps its length, and Python's copy does not change. Kafka
reads secrets from files or from a ``ConfigProvider``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_ARG_START: Final = 48 - 3
"""Index of ``arg_start`` after the command's name in ``/proc/self/stat`` (proc(5))."""

_MASK: Final = b"*"
_STATUS: Final = Path("/proc/self/stat")
_ARGUMENTS: Final = Path("/proc/self/cmdline")


def mask_arguments(pairs: Iterable[str]) -> None:
    """Overwrite the value of each ``NAME=VALUE`` in this process's arguments, before any fork.

    Do nothing if the system does not report the address of the arguments.
    """
    try:
        shown = _ARGUMENTS.read_bytes()
        start = int(_STATUS.read_text().rpartition(")")[2].split()[_ARG_START])
    except (OSError, ValueError, IndexError):
        return
    if not start:
        return
    for pair in map(os.fsencode, pairs):
        name_bytes = pair.find(b"=") + 1
        at = shown.find(pair)
        while at >= 0:
            ctypes.memset(start + at + name_bytes, _MASK[0], len(pair) - name_bytes)
            at = shown.find(pair, at + len(pair))

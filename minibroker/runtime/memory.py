"""Memory of this process.

It must never know the role of the process. Invariant: a reading takes microseconds, so it can be
done at every scrape. Replaces the JVM's ``java.lang:type=Memory``.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Final

_STATM: Final = "/proc/self/statm"
_STATM_MAX_BYTES: Final = 256


def resident_memory() -> Callable[[], int]:
    """Return a function that returns how many bytes of this process are in RAM, shared or not.

    It keeps a descriptor, so that it can be called when none is free. A forked process needs its
    own.
    """
    statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)

    def resident_bytes() -> int:
        return int(os.pread(statm, _STATM_MAX_BYTES, 0).split()[1]) * mmap.PAGESIZE

    return resident_bytes

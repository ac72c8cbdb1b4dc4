"""How much memory this process takes.

It must never know whose process it is. The invariant: reading it costs microseconds, so that it can
be done at every scrape. Stands in for the JVM's ``java.lang:type=Memory``.
"""

from __future__ import annotations

import mmap
from typing import Final

_STATM: Final = "/proc/self/statm"


def resident_bytes() -> int:
    """What of this process lies in RAM, shared or not."""
    with open(_STATM, encoding="ascii") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE

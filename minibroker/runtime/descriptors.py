"""The limit of open files of this process.

Owns the numbers of descriptors. It must never know the files and sockets behind them. Invariant: an
unlimited process has the largest number. Kafka relies on a limit that is never reached.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from typing import Final

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Of this process, or of the whole system."""


def descriptors_max() -> int:
    """Files and sockets that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def has_descriptor() -> bool:
    """Whether this process can open one more file."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in OUT_OF_DESCRIPTORS
    return True

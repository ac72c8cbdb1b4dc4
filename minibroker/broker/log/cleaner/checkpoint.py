"""The offset up to which a log was cleaned, in ``cleaner-offset-checkpoint`` of its directory.

Owns the file. It must never know segments. Invariant: a log without the file was never cleaned, so
its offsets have no gaps; the file is replaced completely or not at all. Kafka's file of this name
has the same format and is in the data directory; here, there is one per partition, as each worker
writes its own.
"""

from __future__ import annotations

import os
from typing import Final

from minibroker.broker.log.paths import read_small_file, replace_file

CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
_VERSION: Final = 0


def has_cleaner_checkpoint(directory: str) -> bool:
    """Whether the log was ever cleaned."""
    return os.path.lexists(os.path.join(directory, CLEANER_CHECKPOINT))


def read_cleaner_checkpoint(directory: str) -> int | None:
    """The offset, or None if there is none that can be read: the log is then cleaned as a whole."""
    try:
        text = read_small_file(os.path.join(directory, CLEANER_CHECKPOINT)).decode()
        version, count, entry = text.splitlines()
        if int(version) != _VERSION or int(count) != 1:
            return None
        return int(entry.split(" ")[2])
    except (OSError, ValueError, IndexError):
        return None


def write_cleaner_checkpoint(directory: str, topic: str, partition: int, offset: int) -> None:
    """Replace the file. Raises OSError. If the content is lost, the whole log is cleaned again."""
    path = os.path.join(directory, CLEANER_CHECKPOINT)
    replace_file(path, f"{_VERSION}\n1\n{topic} {partition} {offset}\n", sync=False)

"""The counts of fault rules in a file that processes share.

Owns the layout of the file and its lock. It must never know what a rule does. Invariant: a decision
reads and writes the counts of a rule under the lock, so they are exact over all processes, and they
survive a process that is killed at any moment. The quota ledger (``quotas.ledger``) shares counters
in the same way.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import Final

from minibroker.broker.log.data_directory import FAULT_COUNTS_FILE
from minibroker.lab.faults.fault_rule import RULES_MAX
from minibroker.lab.faults.rulebook import RuleCounts, fires_at, is_in_time
from minibroker.lab.faults.rules import ActiveRule
from minibroker.runtime.system import reserve_space

_COUNTS: Final = struct.Struct("<4Q")
_BYTES: Final = RULES_MAX * _COUNTS.size
_MODE: Final = 0o600


class FaultCounts:
    """The file of a data directory, created if it does not exist. Raises ``OSError``."""

    def __init__(self, directory: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(directory / FAULT_COUNTS_FILE, flags, _MODE)
        try:
            reserve_space(self._fd, _BYTES)  # A full disk must not fail a store.
            self._memory = mmap.mmap(self._fd, _BYTES)
        except OSError:
            os.close(self._fd)
            raise

    def read(self, slot: int) -> RuleCounts:
        """The counts of a rule."""
        return RuleCounts(*_COUNTS.unpack_from(self._memory, slot * _COUNTS.size))

    def write(self, slot: int, counts: RuleCounts) -> None:
        """Replace the counts of a rule that only this process counts."""
        _COUNTS.pack_into(self._memory, slot * _COUNTS.size, *counts)

    def decide(self, active: ActiveRule, now: float) -> bool:
        """Count a match of a rule that several processes count; return whether it fires."""
        if not is_in_time(active.rule, (now - active.added) * 1000):
            return False
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            counts = self.read(active.slot)
            matches = counts.matches + 1
            fires = fires_at(active.rule, matches)
            self.write(active.slot, counts._replace(matches=matches, hits=counts.hits + fires))
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return fires

    def close(self) -> None:
        """Unmap and close the file."""
        self._memory.close()
        os.close(self._fd)

"""How many entries each role has recorded and handed over, in memory that processes share.

Owns the words of each role. It must never know what an entry is. Invariant: an entry is counted
before what it records can be seen outside the process, and each count is one aligned word, so the
counts are true after a kill at any moment: what was recorded and not handed over is lost. The
memory outlives every process of the broker, the controller too, whose successor continues with
these counts. The quota ledger (``quotas.ledger``) shares counters in the same way.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Final

_IS_ON, _CLEARED = range(2)
_HEAD: Final = 2
_RECORDED, _HANDED_OVER, _CHUNK = range(3)
_ROLE_WORDS: Final = 3
_WORD_BYTES: Final = 8


class JournalCounts:
    """The counts of all roles of a broker; create it before the fork."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        words = _HEAD + _ROLE_WORDS * len(self.names)
        self._words: memoryview[int] = memoryview(mmap.mmap(-1, words * _WORD_BYTES)).cast("Q")
        self._at = {name: _HEAD + _ROLE_WORDS * at for at, name in enumerate(self.names)}

    def word(self, name: str) -> memoryview[int]:
        """Return the number of entries that a role has recorded, for its buffer to write."""
        at = self._at[name] + _RECORDED
        return self._words[at : at + 1]

    def recorded(self, name: str) -> int:
        """Return how many entries a role has recorded, in all its incarnations."""
        return self._words[self._at[name] + _RECORDED]

    def handed_over(self, name: str) -> int:
        """Return how many of them were handed over or given up as lost."""
        return self._words[self._at[name] + _HANDED_OVER]

    def pending(self) -> dict[str, int]:
        """Return how many entries each role has not handed over, if it has any."""
        rest = {name: self.recorded(name) - self.handed_over(name) for name in self.names}
        return {name: entries for name, entries in rest.items() if entries > 0}

    def total(self) -> int:
        """Return how many entries all roles have handed over or lost."""
        return sum(map(self.handed_over, self.names))

    def chunk(self, name: str) -> int:
        """Return the number of the last chunk of a role; 0 if there was none."""
        return self._words[self._at[name] + _CHUNK]

    def hand_over(self, name: str, entries: int, chunk: int | None = None) -> None:
        """Set how many entries a role has handed over, and the number of its last chunk."""
        self._words[self._at[name] + _HANDED_OVER] = entries
        if chunk is not None:
            self._words[self._at[name] + _CHUNK] = chunk

    @property
    def is_on(self) -> bool:
        """Whether the roles record."""
        return self._words[_IS_ON] == 1

    @is_on.setter
    def is_on(self, is_on: bool) -> None:
        self._words[_IS_ON] = is_on

    @property
    def cleared(self) -> int:
        """The sequence of the last entry before the journal was cleared; 0 if it never was."""
        return self._words[_CLEARED]

    @cleared.setter
    def cleared(self, sequence: int) -> None:
        self._words[_CLEARED] = sequence

"""Version ranges as Kafka's schema files write them: ``"3+"``, ``"0-12"``, ``"4"`` or ``""``.

Owns the parsing and the membership test, and knows nothing of messages. A range is never reversed;
the empty range (low above high) contains nothing. Kafka's ``org.apache.kafka.message.Versions``.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

HIGHEST: Final = 32767  # an int16 on the wire, and what "3+" reaches to


class Versions(NamedTuple):
    """An inclusive range of versions."""

    low: int
    high: int

    @staticmethod
    def parse(text: str) -> Versions:
        """Read Kafka's notation; ``""`` and ``"none"`` are the empty range."""
        return _parse(text)

    def has(self, version: int) -> bool:
        """Whether `version` is in the range."""
        return self.low <= version <= self.high

    def __str__(self) -> str:
        if self.low > self.high:
            return "none"
        if self.high == HIGHEST:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


NONE: Final = Versions(0, -1)
_RANGE: Final = re.compile(r"(?P<low>\d+)(?:(?P<open>\+)|-(?P<high>\d+))?")


@functools.cache
def _parse(text: str) -> Versions:
    if text in ("", "none"):
        return NONE
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no version range like '3+', '0-12' or '4'")
    low = int(found["low"])
    high = HIGHEST if found["open"] else int(found["high"] or low)
    if low > high:
        raise ValueError(f"version range {text!r} runs backwards")
    return Versions(low, high)

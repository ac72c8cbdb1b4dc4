"""Version ranges as Kafka's schema files write them: ``"3+"``, ``"0-12"``, ``"4"`` or ``""``.

It owns the parsing and the membership test, and knows nothing of messages. A range is never
reversed; the empty range (low above high) holds nothing. Kafka's generator has the same thing in
``org.apache.kafka.message.Versions``.
"""

from __future__ import annotations

import functools
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
        """Whether `version` lies in the range."""
        return self.low <= version <= self.high

    def covers(self, other: Versions) -> bool:
        """Whether every version of `other` lies in the range."""
        return other.low > other.high or (self.low <= other.low and other.high <= self.high)

    def __str__(self) -> str:
        if self.low > self.high:
            return "none"
        if self.high == HIGHEST:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


NONE: Final = Versions(0, -1)
ALL: Final = Versions(0, HIGHEST)


@functools.cache
def _parse(text: str) -> Versions:
    if text in ("", "none"):
        return NONE
    if text.endswith("+"):
        return Versions(int(text[:-1]), HIGHEST)
    low, _, high = text.partition("-")
    versions = Versions(int(low), int(high or low))
    if versions.low > versions.high:
        raise ValueError(f"version range {text!r} runs backwards")
    return versions

"""Which connections are told of when only a share of them is.

Owns that choice alone; it must never keep anything. Invariant: it follows from the number of a
connection, so every process makes it alike, and of connections numbered one after the other the
share is evenly spread. OpenTelemetry's ``TraceIdRatioBased`` sampler does likewise with traces.
"""

from __future__ import annotations

from typing import Final

_BITS: Final = 64
_GOLDEN: Final = 0x9E3779B97F4A7C15
"""2 to the 64th over the golden ratio: its multiples lie evenly on the circle of 64 bits."""


def is_sampled(connection: int, share: float) -> bool:
    """Whether a connection belongs to the share of all."""
    if share >= 1:
        return True
    place = connection * _GOLDEN & (1 << _BITS) - 1
    return place < share * 2.0**_BITS

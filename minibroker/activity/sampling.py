"""Chooses the connections that are recorded when only a share of them is.

Owns this choice. It must never keep state. Invariant: the choice depends only on the connection's
number, so all processes agree, and the share is spread evenly over consecutive numbers.
OpenTelemetry's ``TraceIdRatioBased`` sampler does the same with traces.
"""

from __future__ import annotations

from typing import Final

_BITS: Final = 64
_GOLDEN: Final = 0x9E3779B97F4A7C15
"""2 to the 64th over the golden ratio: its multiples are spread evenly over 64 bits."""


def is_sampled(connection: int, share: float) -> bool:
    """Whether a connection is recorded when this share of all connections is."""
    if share >= 1:
        return True
    place = connection * _GOLDEN & (1 << _BITS) - 1
    return place < share * 2.0**_BITS

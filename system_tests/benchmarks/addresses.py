"""``python -m system_tests.benchmarks.addresses``: memory of the counts and rates of many
addresses.

Owns filling the counts of a separate process, with rates in every sample and one open connection of
each address, and their expiry an hour of their clock later. Invariant: it prints the growth of this
process's memory as the kernel sees it, never an estimate.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Final

from minibroker.broker.connections.limits import (
    IP_EXPIRES_MS,
    ConnectionCountLimits,
    ConnectionCounts,
    ConnectionRateLimits,
    ConnectionRates,
)
from system_tests.harness.processes import pss_bytes

ADDRESSES: Final = 100_000
SAMPLES, WINDOW_MS = 11, 1000
FIRST_NUMBER: Final = 1 << 32
LISTENER: Final = "PLAINTEXT"


def address(number: int) -> str:
    """A new text each time, as from the kernel."""
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def taken_mb(before: int) -> float:
    gc.collect()
    return (pss_bytes(os.getpid()) - before) / 1e6


def fill(rates: ConnectionRates, counts: ConnectionCounts, count: int) -> int:
    """Let each address have a connection in each sample there is, of which the first stays;
    return when the last one came.
    """
    now_ms = 0
    for sample in range(SAMPLES + 1):
        for number in range(count):
            now_ms = sample * WINDOW_MS + number * WINDOW_MS // count
            ip = address(number)
            if sample == 0:
                assert counts.arrive(FIRST_NUMBER + number, LISTENER, ip) is None
            rates.record(LISTENER, now_ms)
            assert rates.record_ip(LISTENER, ip, now_ms) == 0
            if sample == 0:
                assert counts.admit(FIRST_NUMBER + number) is None
                counts.set_processor(FIRST_NUMBER + number, 0)
    return now_ms


def measured(count: int) -> dict[str, float]:
    """The growth in MB with every address there, and after all have left and an hour."""
    rates = ConnectionRates([LISTENER], SAMPLES, WINDOW_MS)
    rates.limits = ConnectionRateLimits(ip_default=100)
    counts = ConnectionCounts(ConnectionCountLimits(per_ip=5, drop_per_ip=5))
    before = pss_bytes(os.getpid())
    now_ms = fill(rates, counts, count)
    there = taken_mb(before)
    for number in range(count):
        counts.remove(FIRST_NUMBER + number)
    kept = rates.figures(now_ms + IP_EXPIRES_MS + 1, count).ips
    assert not kept, f"{len(kept)} were not forgotten"
    assert not counts.by_ip()
    return {"there": there, "gone": taken_mb(before)}


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ADDRESSES
    print(json.dumps(measured(count)))

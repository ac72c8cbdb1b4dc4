"""Measures of snapshots: taken, and returned to without and after changes of every partition.

Owns the amount of data and row names; it starts no peer and prints nothing. Invariant: the broker
has nothing but the topic of the measure. Only minibroker has snapshots.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from minibroker.client.control import Control
from system_tests.benchmarks.frames import versioned
from system_tests.benchmarks.growth import ready
from system_tests.benchmarks.measures import Figures, create_topic
from system_tests.benchmarks.peers import Peer

PARTITIONS: Final = 31
RECORDS: Final = 323
"""In each partition."""
RECORD_BYTES: Final = 1_000
TURNS: Final = 5

CHANGED: Final = (0, 8, PARTITIONS)
"""Partitions that get records between a snapshot and the return to it."""

TAKEN: Final = f"snapshot of 10 MB in {PARTITIONS} partitions"


def restored(changed: int) -> str:
    return f"return to it after changes in {changed} partitions"


def snapshots(peer: Peer) -> Figures:
    """Take snapshots of a topic and return to them."""
    assert peer.control_url is not None
    times: dict[str, list[float]] = {row: [] for row in (TAKEN, *map(restored, CHANGED))}
    partitions = range(PARTITIONS)
    with closing(Control(peer.control_url)) as control, versioned(peer) as connection:

        def restore() -> object:
            return control.post("v1", "snapshots", "measured", "restore")

        control.post("v1", "reset")
        topic = create_topic(peer, "snapshots", PARTITIONS)
        ready(connection, topic, partitions, RECORD_BYTES, RECORDS)
        for _ in range(TURNS):
            times[TAKEN].append(timed_ms(lambda: control.post("v1", "snapshots", name="measured")))
            for changed in CHANGED:
                if changed:
                    ready(connection, topic, partitions[:changed], RECORD_BYTES)
                times[restored(changed)].append(timed_ms(restore))
            control.delete("v1", "snapshots", "measured")
        control.post("v1", "reset")
    return {row: statistics.median(each) for row, each in times.items()}


def timed_ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3

"""Measures of transactional producers: transactions of 100 records over four partitions.

Owns amounts and row names; it starts no peer and prints nothing. Invariant: every transaction is
committed before the next one of its producer, so the broker decides as often as clients do.
"""

from __future__ import annotations

from typing import Final

from system_tests.benchmarks.client import TRANSACTIONS, run
from system_tests.benchmarks.measures import SMALL_RECORD_BYTES, Figures, cpu_seconds, topic_of
from system_tests.benchmarks.peers import Peer

PRODUCERS: Final = (1, 8)
PARTITIONS: Final = 4
RECORDS: Final = 100
COUNT: Final = 600
"""Transactions of all producers together."""


def rate_of(producers: int) -> str:
    """The row of the transactions per second."""
    who = "one producer" if producers == 1 else f"{producers} producers"
    return f"transactions of {RECORDS} records, {who}"


def median_of(producers: int) -> str:
    return f"{rate_of(producers)}, median"


def cpu_of(producers: int) -> str:
    return f"{rate_of(producers)}: broker's CPU"


def commits(peer: Peer) -> Figures:
    """Commit transactions, of one producer and of several at a time."""
    figures: Figures = {}
    for producers in PRODUCERS:
        with topic_of(peer, "transactions", PARTITIONS) as topic:
            numbers = (COUNT // producers, SMALL_RECORD_BYTES, PARTITIONS, RECORDS, producers)
            used = cpu_seconds(peer.pid)
            seen = run("commit", peer.servers, topic, *numbers, program=TRANSACTIONS)
            used = cpu_seconds(peer.pid) - used
        figures[rate_of(producers)] = seen["transactions"] / seen["seconds"]
        figures[median_of(producers)] = seen["median_us"]
        figures[cpu_of(producers)] = used / seen["all_transactions"] * 1e6
    return figures

"""Requests of a transaction coordinator to append markers.

Owns the shape of a request. It must never know logs or how requests are sent. Invariant: plain data
that can be pickled; all partitions of one request have the same owner. Kafka's ``TxnMarkerEntry``.
"""

from __future__ import annotations

from typing import NamedTuple

from minibroker_protocol.control_records import EndTransactionMarker


class TransactionMarker(NamedTuple):
    """The outcome of one transaction for some of its partitions (topic, index).

    ``transaction_version`` is the one of the producer's requests (KIP-1228).
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int
    partitions: tuple[tuple[str, int], ...]

    @property
    def marker(self) -> EndTransactionMarker:
        """The content of the control records."""
        return EndTransactionMarker(self.committed, self.coordinator_epoch)

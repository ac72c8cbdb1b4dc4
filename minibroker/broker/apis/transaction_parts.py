"""Parts of AddPartitionsToTxn as processors, partition leaders and coordinators exchange them.

Owns their fields; it must never know how an API fills or answers them. Invariant: everything is
plain picklable data. Kafka's counterpart is ``AddPartitionsToTxnRequest`` from version 4 on.
"""

from __future__ import annotations

from typing import NamedTuple

from minibroker_protocol.errors import ErrorCode


class PartitionsToAdd(NamedTuple):
    """Partitions to add to a transaction, or to look up in it with ``verify_only``."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    partitions: tuple[tuple[str, int], ...]
    client_version: int = 2
    """Transaction version of the client."""


AddPartitionsPart = tuple[PartitionsToAdd, ...]
AddPartitionsReply = dict[str, dict[tuple[str, int], ErrorCode]]
"""Errors by transactional id and partition."""

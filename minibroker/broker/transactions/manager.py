"""Transactions of one I/O worker by id, and the markers that wait to be sent to owners.

Owns the set of transactional ids, each change of which is written to its partition of
``__transaction_state`` before it is in force; and which markers are to be sent, and to which owners
requests are in flight. It must never know waiting requests, rules, a clock, or how markers are
sent. Invariants: replaying the logs gives the current states, except for partitions whose markers
are written already; an owner has at most one request in flight, so markers that come meanwhile are
sent together in the next one, and an owner is computed when a marker is sent, not earlier. Kafka's
``TransactionStateManager`` and ``TransactionMarkerChannelManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from minibroker.broker.groups.state_log import StateLog, StateLogs
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker.broker.transactions.state_machine import (
    TopicPartition,
    TransactionEntry,
    TransactionMetadata,
    decode_transaction,
)
from minibroker_protocol.errors import ErrorCode

_logger = logging.getLogger(__name__)

TRANSACTIONAL_IDS_MAX: Final = 100_000
"""Transactional ids that one I/O worker coordinates."""

LOG_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""Errors of a log as clients get them from the coordinator."""


class TransactionManager(StateLogs[StateLog]):
    """States by transactional id.

    ``open_partition`` returns a partition of ``__transaction_state``. It is called once per
    partition, on first use. ``transaction_version`` returns the one of the cluster, by which
    values are encoded.
    """

    def __init__(
        self,
        *,
        partitions: int,
        open_partition: Callable[[int], Partition],
        transaction_version: Callable[[], int],
    ) -> None:
        super().__init__(
            TRANSACTION_STATE_TOPIC, partitions, lambda at: StateLog(open_partition(at))
        )
        self.transactions: dict[str, TransactionMetadata] = {}
        self._transaction_version = transaction_version

    def load(self, partitions: Iterable[int]) -> list[str]:
        """Load the transactional ids of the partitions; return those that were loaded.

        A partition whose log cannot be opened remains in ``unloaded``.
        """
        loaded: dict[str, TransactionMetadata] = {}
        for _, log in self.open_logs(partitions):
            for batch in log.batches():
                if batch.header.is_control:
                    continue
                for entry in log.entries(batch, decode_transaction):
                    loaded.pop(entry.transactional_id, None)
                    if entry.metadata is not None:
                        loaded[entry.transactional_id] = entry.metadata
        self.transactions |= loaded
        return list(loaded)

    def coordinator_epoch(self, transactional_id: str) -> int:
        """The leader epoch of the partition that stores the id, by which markers are fenced."""
        return self.log_of(transactional_id).leader_epoch

    def store(
        self, transactional_id: str, metadata: TransactionMetadata | None, now_ms: int
    ) -> ErrorCode:
        """Write a state, or a tombstone if it is None; return the error for the client.

        On an error the state is the previous one.
        """
        known = transactional_id in self.transactions
        if not known and len(self.transactions) >= TRANSACTIONAL_IDS_MAX:
            _logger.warning(
                "transactional id %r is rejected: this worker coordinates the maximum of %d",
                transactional_id,
                TRANSACTIONAL_IDS_MAX,
            )
            return ErrorCode.POLICY_VIOLATION
        entry = TransactionEntry(transactional_id, metadata)
        try:
            log = self.log_of(transactional_id)
            log.append([entry.encode(self._transaction_version())], now_ms=now_ms)
        except LogError as error:
            _logger.warning("transactional id %r could not be written: %s", transactional_id, error)
            return LOG_ERRORS.get(error.code, error.code)
        if metadata is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = metadata
        return ErrorCode.NONE

    def remove_all(self, *, clear: bool) -> None:
        """Remove all transactional ids and release the logs, which are cleared or kept."""
        self.transactions.clear()
        self.release_logs(clear=clear)


MARKERS_PER_REQUEST_MAX: Final = 500
"""Transactions whose markers are sent in one request; further ones wait for the next."""

PartitionsById = dict[str, frozenset[TopicPartition]]
"""Partitions by transactional id."""


class MarkerQueue:
    """Partitions without a marker, by transactional id."""

    def __init__(self) -> None:
        self._waiting: PartitionsById = {}
        self._busy: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, transactional_id: str, partitions: frozenset[TopicPartition]) -> None:
        """Add partitions whose markers are to be sent."""
        known = self._waiting.get(transactional_id, frozenset())
        self._waiting[transactional_id] = known | partitions

    def take(self, owner_of: Callable[[str, int], int]) -> dict[int, PartitionsById]:
        """Take what can be sent now, by owner; each owner is busy until ``sent``."""
        taken: dict[int, PartitionsById] = {}
        left: PartitionsById = {}
        for transactional_id, partitions in self._waiting.items():
            for each in sorted(partitions):
                owner = owner_of(*each)
                target = left
                batch = taken.setdefault(owner, {})
                fits = transactional_id in batch or len(batch) < MARKERS_PER_REQUEST_MAX
                if owner not in self._busy and fits:
                    target = batch
                target[transactional_id] = target.get(transactional_id, frozenset()) | {each}
        self._waiting = left
        batches = {owner: batch for owner, batch in taken.items() if batch}
        self._busy |= batches.keys()
        return batches

    @property
    def is_busy(self) -> bool:
        """Whether a request is in flight."""
        return bool(self._busy)

    def sent(self, owner: int) -> None:
        """Note that the request to the owner was answered, or has failed."""
        self._busy.discard(owner)

    def clear(self) -> None:
        """Remove everything that waits."""
        self._waiting.clear()

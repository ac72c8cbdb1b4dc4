"""All transactional ids that one I/O worker coordinates, and the logs that store them.

Owns the set of transactional ids, and writes each change to its partition of
``__transaction_state`` before it is in force. It must never know waiting requests, rules or a
clock. Invariant: replaying the logs gives the current states, except for partitions whose markers
are written already. Kafka's counterpart is ``TransactionStateManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from minibroker.broker.groups.state_log import StateLog
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.placement import transaction_partition
from minibroker.broker.transactions.metadata import (
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


class TransactionManager:
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
        self.transactions: dict[str, TransactionMetadata] = {}
        self.unloaded: dict[int, str] = {}
        """Partitions whose log could not be opened, each with the error."""
        self._partitions = partitions
        self._open_partition = open_partition
        self._transaction_version = transaction_version
        self._logs: dict[int, StateLog] = {}

    def _log(self, partition: int) -> StateLog:
        log = self._logs.get(partition)
        if log is None:
            log = self._logs[partition] = StateLog(self._open_partition(partition))
        return log

    def load(self, partitions: Iterable[int]) -> list[str]:
        """Load the transactional ids of the partitions; return those that were loaded.

        A partition whose log cannot be opened remains in ``unloaded``.
        """
        loaded: dict[str, TransactionMetadata] = {}
        for partition in partitions:
            try:
                log = self._log(partition)
            except LogError as error:
                self.unloaded[partition] = error.text
                continue
            for batch in log.batches():
                if batch.header.is_control:
                    continue
                for entry in log.entries(batch, decode_transaction):
                    loaded.pop(entry.transactional_id, None)
                    if entry.metadata is not None:
                        loaded[entry.transactional_id] = entry.metadata
            self.unloaded.pop(partition, None)
        self.transactions |= loaded
        return list(loaded)

    def partition_of(self, transactional_id: str) -> int:
        """The partition of ``__transaction_state`` that stores the id."""
        return transaction_partition(transactional_id, self._partitions)

    def is_loaded(self, transactional_id: str) -> bool:
        """Whether the partition of this id is loaded."""
        return not self.unloaded or self.partition_of(transactional_id) not in self.unloaded

    def coordinator_epoch(self, transactional_id: str) -> int:
        """The leader epoch of the partition that stores the id, by which markers are fenced."""
        return self._log(self.partition_of(transactional_id)).leader_epoch

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
        partition = self.partition_of(transactional_id)
        try:
            log = self._log(partition)
            log.append([entry.encode(self._transaction_version())], now_ms=now_ms)
        except LogError as error:
            _logger.warning("transactional id %r could not be written: %s", transactional_id, error)
            return LOG_ERRORS.get(error.code, error.code)
        if metadata is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = metadata
        return ErrorCode.NONE

    def unload(self) -> dict[int, StateLog]:
        """Remove all transactional ids and release the logs, which are returned unchanged."""
        self.transactions.clear()
        self.unloaded.clear()
        logs, self._logs = self._logs, {}
        return logs

    def clear(self) -> None:
        """Remove all transactional ids and clear and release the logs."""
        for partition, log in self.unload().items():
            try:
                log.clear()
            except OSError as error:
                _logger.warning("__transaction_state-%d cannot be cleared: %s", partition, error)

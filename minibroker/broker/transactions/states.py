"""The states of a transaction and the transitions between them, as one table.

Theory of operation. A transactional id starts *Empty*. The first partition makes its transaction
*Ongoing*. The decision to commit or to abort is made by writing *PrepareCommit* or *PrepareAbort*
to the log; from then on it is never revoked. When every partition has its marker, the transaction
is *CompleteCommit* or *CompleteAbort*, and the next one may start. A client of transaction version
2 may also abort when it does not know whether anything was added (KIP-890), so Empty and the
complete states may move to PrepareAbort. An expired id is removed from the log.

This module must never know the causes of transitions; they are in ``state_machine``. Invariant:
the numbers and names are Kafka's. Kafka's class is ``TransactionState``; its state
PrepareEpochFence is never stored and is not needed here, because nothing happens between fencing
a producer and aborting its transaction, and neither is Dead.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class TransactionState(enum.Enum):
    """The state of a transaction. The value is its number in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


STATE_NAMES: Final[Mapping[TransactionState, str]] = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
}
"""Names in responses."""

OTHER_STATE_NAMES: Final = frozenset({"Dead", "PrepareEpochFence"})
"""Names of Kafka's states that no transaction has here; filters may contain them."""

IDLE: Final = frozenset({
    TransactionState.EMPTY,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
})  # fmt: skip
"""States without a transaction; only in these may a transactional id expire."""

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""States in which the decision is made, and markers are being written."""

PREDECESSORS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: IDLE,
    TransactionState.ONGOING: IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: IDLE | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
}
"""The states from which each state may be reached."""

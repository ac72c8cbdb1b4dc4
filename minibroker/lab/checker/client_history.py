"""History of a run: the operations of client processes, with what each of them sent and polled.

Owns the types that the rules work on. It must never know how a history is stored. Invariant: an
operation is either complete or of unknown outcome; values are unique within a key, so a value
identifies its record. A key is a partition; Jepsen's Kafka workload uses the same model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Value = int | str
"""Value of a record."""

FORMAT_VERSION = 1
"""Version of the history format that is read and written."""


class OperationKind(StrEnum):
    """What a process does in one operation."""

    SEND = "send"
    """Send records outside of a transaction."""
    POLL = "poll"
    """Poll records outside of a transaction."""
    TXN = "txn"
    """Send and poll within one transaction."""
    ASSIGN = "assign"
    """Assign keys to the consumer."""
    SUBSCRIBE = "subscribe"
    """Subscribe the consumer, as a member of a group."""
    REOPEN = "reopen"
    """Give up the clients of the process, and create new ones."""


class OperationResult(StrEnum):
    """How an operation ended."""

    OK = "ok"
    FAIL = "fail"
    """It has no effect: its records are aborted or were never appended."""
    UNKNOWN = "unknown"
    """It may have an effect, now or later."""


class Consumers(StrEnum):
    """How consumers get their partitions."""

    ASSIGN = "assign"
    SUBSCRIBE = "subscribe"


class IsolationLevel(StrEnum):
    """Kafka's ``isolation.level`` of the consumers."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class SentRecord(NamedTuple):
    """A record that an operation sent; the offset is known if it was acknowledged."""

    value: Value
    offset: int | None


class PolledRecord(NamedTuple):
    """A record that a poll returned."""

    offset: int
    value: Value


@dataclass(frozen=True)
class HistorySettings:
    """How the clients of a history were configured: it decides which anomalies are allowed."""

    workload: str = ""
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    idempotence: bool = True
    consumers: Consumers = Consumers.ASSIGN
    final_polls: bool = False
    """Whether the run ended with polls until all committed records were seen, or in vain: those
    that were acknowledged, and those of transactions that were partly polled.
    """
    clients: dict[int, str] = field(default_factory=dict)
    """Name and version of the client library of each process."""


@dataclass(slots=True)
class ClientOperation:
    """One operation of a process."""

    index: int
    """Position in the order of invocations."""
    process: int
    kind: OperationKind
    invoked_line: int
    result: OperationResult = OperationResult.UNKNOWN
    completed_line: int | None = None
    sends: dict[str, list[SentRecord]] = field(default_factory=dict)
    polls: dict[str, list[PolledRecord]] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    """Keys of an assignment or subscription."""
    from_beginning: bool = False
    """Whether the assignment starts at the beginning of its keys."""
    rebalanced: frozenset[str] = frozenset()
    """Keys that a rebalance moved during the operation."""

    @property
    def line(self) -> int:
        """The line to show for this operation."""
        return self.completed_line or self.invoked_line


@dataclass
class ClientHistory:
    """A complete history."""

    settings: HistorySettings
    operations: list[ClientOperation]
    """In the order of invocations."""
    completed: list[ClientOperation]
    """The operations with a completion, in the order of completions."""

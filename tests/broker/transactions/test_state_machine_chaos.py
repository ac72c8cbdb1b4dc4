"""Any interleaving of producers, retries, duplicates, timeouts, markers and coordinator deaths.

A model of clients and partitions around the rules. A client repeats a request until it has an
answer; every request it ever sent may arrive again at any time; the coordinator may die after any
write, and then continues from what it has written. Checked after every step: what is stored is the
state, every open transaction of a partition ends in one way, and with transaction version 2 nothing
that a client was told to be committed is lost, and no late request of an earlier transaction ends a
later one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minibroker.broker.transactions.state_machine import (
    EPOCH_MAX,
    AddPartitions,
    EndTransaction,
    InitProducer,
    ProducerIdAndEpoch,
    TransactionDecision,
    TransactionEntry,
    TransactionMetadata,
    add_partitions,
    decode_transaction,
    end_transaction,
    init_producer,
    is_timed_out,
    markers_written,
    time_out,
)
from minibroker.broker.transactions.state_machine import TransactionState as State
from minibroker_protocol.errors import ErrorCode

OK, CONCURRENT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS
TIMEOUT_MS = 1_000
INDEXES = st.integers(0, 2)


class Sent(NamedTuple):
    """A request as it was sent; it may arrive again."""

    kind: str
    producer: ProducerIdAndEpoch
    value: int
    transaction: int


@dataclass
class Partition:
    """What a partition leader knows about the producer."""

    epoch: dict[int, int] = field(default_factory=dict)
    open: set[tuple[int, int]] = field(default_factory=set)
    """Producer id and transaction of records without a marker."""
    outcomes: dict[int, bool] = field(default_factory=dict)
    """Whether each transaction that ended here was committed."""


class Chaos(RuleBasedStateMachine):
    version = 2

    def __init__(self) -> None:
        super().__init__()
        self.now = 1
        self.metadata: TransactionMetadata | None = None
        self.stored: tuple[bytes, bytes | None] | None = None
        self.next_id = 100
        self.producer: ProducerIdAndEpoch | None = None
        self.transaction = 0
        self.is_ending = False
        """Whether the client still expects the answer to EndTxn."""
        self.sent: list[Sent] = []
        self.partitions = [Partition() for _ in range(3)]
        self.told: dict[int, bool] = {}
        """What clients were told about transactions that ended."""
        self.decided: dict[int, bool] = {}
        self.current = 0
        """The transaction that is ongoing or prepared at the coordinator."""

    # ------------------------------------------------------------------ the coordinator

    def carry_out(self, decide: object) -> TransactionDecision:
        decision: TransactionDecision = decide(None)  # type: ignore[operator]
        if decision.needs_producer_id:
            self.next_id += 1
            decision = decide(self.next_id)  # type: ignore[operator]
        assert not decision.needs_producer_id
        if decision.keep is not None:
            self.metadata = decision.keep
        if decision.write is not None:
            self.metadata = decision.write
            self.stored = TransactionEntry("x", decision.write).encode(2)
            if self.version >= 2 and decision.write.is_prepared and decision.write.partitions:
                assert self.decided.setdefault(self.current, decision.write.is_commit) == (
                    decision.write.is_commit
                )
            if decision.write.is_prepared and not decision.write.partitions:
                self.complete(frozenset())
        return decision

    def complete(self, partitions: frozenset[tuple[str, int]]) -> None:
        metadata = self.metadata
        assert metadata is not None
        self.carry_out(lambda _: markers_written(metadata, partitions, self.now))

    @rule()
    def coordinator_dies(self) -> None:
        self.metadata = None
        if self.stored is not None:
            entry = decode_transaction(*self.stored)
            assert entry is not None
            self.metadata = entry.metadata

    @rule(index=INDEXES, lost=st.booleans())
    def write_marker(self, index: int, lost: bool) -> None:
        """A marker reaches its partition; ``lost``: its answer does not reach the coordinator."""
        metadata = self.metadata
        if metadata is None or not metadata.is_prepared or ("t", index) not in metadata.partitions:
            return
        partition = self.partitions[index]
        epoch = partition.epoch.get(metadata.producer_id, -1)
        open_here = {each for each in partition.open if each[0] == metadata.producer_id}
        newer = metadata.producer_epoch > epoch
        repeated = metadata.producer_epoch == epoch and not open_here
        if metadata.client_version >= 2:
            assert newer or repeated, (metadata, partition)
        partition.epoch[metadata.producer_id] = metadata.producer_epoch
        for each in open_here:
            partition.open.discard(each)
            assert partition.outcomes.setdefault(each[1], metadata.is_commit) == metadata.is_commit
        if not lost:
            self.complete(frozenset({("t", index)}))

    @rule(elapsed=st.integers(0, 2 * TIMEOUT_MS))
    def time_passes(self, elapsed: int) -> None:
        self.now += elapsed
        metadata = self.metadata
        if metadata is not None and is_timed_out(metadata, self.now):
            event = self.version
            self.carry_out(lambda new: time_out(metadata, event, self.now, new))

    # ---------------------------------------------------------------------- the clients

    @rule(restarted=st.booleans())
    def init(self, restarted: bool) -> None:
        expected = None if restarted else self.producer
        event = InitProducer(TIMEOUT_MS, expected, self.version)
        decision = self.carry_out(lambda new: init_producer(self.metadata, event, self.now, new))
        if decision.error is OK:
            self.producer = decision.producer
            self.begin()

    def begin(self) -> None:
        self.transaction += 1
        self.is_ending = False

    # Clients wait for the answer to EndTxn. Before transaction version 2 nothing else keeps records
    # that are sent earlier out of the next transaction.
    @precondition(lambda self: self.producer is not None)
    @precondition(lambda self: self.version >= 2 or not self.is_ending)
    @rule(index=INDEXES)
    def produce(self, index: int) -> None:
        """Add the partition and write a record, if the coordinator permits it."""
        assert self.producer is not None
        self.arrive(Sent("add", self.producer, index, self.transaction), first=True)

    @precondition(lambda self: self.producer is not None)
    @rule(committed=st.booleans(), lost=st.booleans())
    def end(self, committed: bool, lost: bool) -> None:
        assert self.producer is not None
        request = Sent("end", self.producer, int(committed), self.transaction)
        decision = self.arrive(request, first=True)
        self.is_ending = True
        if lost:
            return
        if decision.error is OK:
            if self.version >= 2:
                self.producer = decision.producer
            self.told[self.transaction] = committed
            self.begin()
        elif decision.error is not CONCURRENT:
            self.producer = None  # The client gives up.

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def old_request_arrives_again(self, data: st.DataObject) -> None:
        self.arrive(data.draw(st.sampled_from(self.sent)), first=False)

    def arrive(self, request: Sent, *, first: bool) -> TransactionDecision:
        if first:
            self.sent = [*self.sent[-30:], request]
        if request.kind == "end":
            event = EndTransaction(request.producer, bool(request.value), self.version)
            before = self.current
            decision = self.carry_out(
                lambda new: end_transaction(self.metadata, event, self.now, new)
            )
            ended = decision.write is not None and decision.write.partitions
            if ended and self.version >= 2:
                assert request.transaction == before, "a late request ends another transaction"
            return decision
        was_ongoing = self.metadata is not None and self.metadata.state is State.ONGOING
        added = AddPartitions(request.producer, frozenset({("t", request.value)}), self.version)
        decision = self.carry_out(lambda _: add_partitions(self.metadata, added, self.now))
        if decision.error is OK:
            if not was_ongoing:
                self.current = request.transaction
            if first:
                partition = self.partitions[request.value]
                pid, epoch = request.producer
                assert epoch >= partition.epoch.get(pid, -1)
                partition.epoch[pid] = epoch
                partition.open.add((pid, request.transaction))
        return decision

    # ------------------------------------------------------------------------- promises

    @invariant()
    def stored_state_is_current(self) -> None:
        if self.stored is None or self.metadata is None:
            return
        entry = decode_transaction(*self.stored)
        assert entry is not None
        assert entry.metadata is not None
        assert entry.metadata._replace(partitions=frozenset(), last_epoch=-1) == (
            self.metadata._replace(partitions=frozenset(), last_epoch=-1)
        )
        assert entry.metadata.partitions >= self.metadata.partitions

    @invariant()
    def no_transaction_is_torn(self) -> None:
        for partition in self.partitions:
            for transaction, committed in partition.outcomes.items():
                if self.version >= 2:
                    assert self.decided.get(transaction, committed) == committed
                if transaction in self.told and self.version >= 2:
                    assert self.told[transaction] == committed

    @invariant()
    def epochs_are_in_range(self) -> None:
        if self.metadata is not None:
            assert 0 <= self.metadata.producer_epoch <= EPOCH_MAX


class OlderChaos(Chaos):
    """Clients of transaction version 1, for which late requests may start and end transactions."""

    version = 1


Chaos.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
OlderChaos.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestVersion2 = Chaos.TestCase
TestVersion1 = OlderChaos.TestCase

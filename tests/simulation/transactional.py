"""Clients of transactions in a simulated run: producers, a copy job, and readers.

Owns what they do, and what each transaction wrote and how it ended. It must never know how roles
work. Invariant: a client repeats a request with the same content until it is answered, as Kafka's
clients do, and gives a transaction up for every error that they do not retry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from minibroker.lab.checker.history import ClientOperation, OperationKind, OperationResult
from minibroker_protocol.control_records import parse_marker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records
from minibroker_protocol.schema import Message
from tests.broker.apis.session_client import SessionClient
from tests.simulation.actors import STUCK_S, TICK_S, Actor, fetch_request
from tests.simulation.checked_history import acknowledge, add_polls, add_sends
from tests.simulation.history import Partition
from tests.simulation.rare_paths import COMMITTED, GIVEN_UP, KILLED_AT_END, ZOMBIE_FENCED
from tests.simulation.surroundings import World

SOURCE, COPIES, STATES = "source", "copies", "states"
TOPICS: Final = {SOURCE: 2, COPIES: 2, STATES: 1}
GROUP: Final = "copiers"
COPIED_BY: Final = "#"
"""What separates a copied value from the number of the transaction, which makes it unique."""
KEYS: Final = 4
RARE_KEYS: Final = 60
"""Keys that are written once or twice in a run, so that cleaning keeps their records."""
TIMEOUTS_MS: Final = (300_000, 300_000, 2000)
HANG_S: Final = 5.0
"""How long a client may do nothing within a transaction."""

Pairs = list[tuple[bytes | None, str]]
"""Keys and values of records."""

FENCED: Final = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
RESULTS: Final = {
    True: OperationResult.OK,
    False: OperationResult.FAIL,
    None: OperationResult.UNKNOWN,
}

RETRIED: Final = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
}


class TransactionLostError(Exception):
    """The transaction cannot continue; its client starts again."""


class Written(NamedTuple):
    """One record of a transaction, as it was acknowledged."""

    partition: Partition
    offset: int
    key: bytes | None
    value: str


class Transaction:
    """What one transaction wrote, and how it ended."""

    def __init__(self, version: int, operation: ClientOperation) -> None:
        self.version = version
        self.operation = operation
        self.written: list[Written] = []
        self.committed: bool | None = False
        """Whether it is committed; None if its client does not know."""


class TransactionalClient(Actor):
    """A client with one transactional id, of transaction version 0 or 2."""

    def __init__(self, world: World, name: str, version: int) -> None:
        super().__init__(world, name)
        self.version = version
        self.transactions: list[Transaction] = []
        self.timeout_ms = self.random.choice(TIMEOUTS_MS)
        self.producer = -1, -1
        self.sequences: Counter[Partition] = Counter()
        self.added: set[str | Partition] = set()

    async def start(self) -> None:
        """Initialize the producer, which aborts what an earlier start has left."""
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=self.timeout_ms
        )

        async def attempt() -> tuple[int, int] | None:
            response = await self.ask(request, (2, 4))
            if response is None or response.error_code:
                return None
            return response.producer_id, response.producer_epoch

        self.producer = await self.until(attempt)
        self.sequences.clear()
        self.added.clear()

    async def repeat(
        self,
        request: Message,
        versions: tuple[int, int],
        errors: Callable[[Any], Mapping[Any, int]],
    ) -> Any:
        """Send a request until it has no error. Raises TransactionLostError."""

        async def attempt() -> Any:
            patience_s = self.random.choice((TICK_S, STUCK_S, STUCK_S))
            response = await self.ask(request, versions, patience_s=patience_s)
            if response is None:
                return None
            found = {ErrorCode(code) for code in errors(response).values()} - {ErrorCode.NONE}
            self.world.counts.update(code.name for code in found)
            if found - RETRIED:
                raise TransactionLostError(f"{self.name}: {found}")
            return None if found else response

        return await self.until(attempt)

    async def write(self, transaction: Transaction, partition: Partition, pairs: Pairs) -> None:
        """Append records in a transaction, which starts with the first ones."""
        topic, index = partition
        producer_id, epoch = self.producer
        is_checked = topic != STATES
        if is_checked:
            add_sends(transaction.operation, partition, [value for _, value in pairs])
        if self.version < 2 and partition not in self.added:
            added = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[index])],
            )
            await self.repeat(added, (0, 3), _errors_of_added)
            self.added.add(partition)
        request = self._produce(partition, pairs)
        response = await self.repeat(request, self._produce_versions, _errors_of_produced)
        [result] = response.responses[0].partition_responses
        self.sequences[partition] += len(pairs)
        if is_checked:
            acknowledge(transaction.operation, partition, result.base_offset, len(pairs))
        transaction.written += [
            Written(partition, result.base_offset + number, key, value)
            for number, (key, value) in enumerate(pairs)
        ]

    @property
    def _produce_versions(self) -> tuple[int, int]:
        return (12, 12) if self.version == 2 else (3, 11)

    def _produce(self, partition: Partition, pairs: Pairs) -> ProduceRequest:
        topic, index = partition
        producer_id, epoch = self.producer
        records = build_batch(
            [Record(0, self.world.wall_ms(), key, value.encode()) for key, value in pairs],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self.sequences[partition],
            transactional=True,
        )
        data = PartitionProduceData(index=index, records=records)
        return ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )

    async def end(self, transaction: Transaction, *, committed: bool) -> None:
        """Commit or abort, and note the result."""
        producer_id, epoch = self.producer
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=committed,
        )
        versions = (5, 5) if self.version == 2 else (0, 4)
        transaction.committed = None if committed else False
        self.world.reach_moment(KILLED_AT_END)
        response = await self.repeat(request, versions, lambda found: {0: found.error_code})
        transaction.committed = committed
        self.world.counts[COMMITTED] += committed
        self.added.clear()
        if self.version == 2:
            self.producer = response.producer_id, response.producer_epoch
            self.sequences.clear()

    async def attempt_transaction(self, work: Callable[[Transaction], Awaitable[bool]]) -> bool:
        """Run ``work``, which returns whether to commit, in a transaction; False if it failed."""
        operations = self.world.operations
        transaction = Transaction(self.version, operations.invoke(self.name, OperationKind.TXN))
        self.transactions.append(transaction)
        try:
            committed = await work(transaction)
            if self.random.random() < 0.03:
                await trio.sleep(HANG_S)
            if self.random.random() < 0.05:
                raise TransactionLostError("this client crashes")
            await self.end(transaction, committed=committed)
        except TransactionLostError as lost:
            self.world.record(self.name, f"lost: {lost}")
            self.world.counts[GIVEN_UP] += 1
            operations.complete(transaction.operation, RESULTS[transaction.committed])
            await self._start_again()
            return False
        operations.complete(transaction.operation, RESULTS[transaction.committed])
        return committed

    async def _start_again(self) -> None:
        """Start as a new client; a request of the former one must then be refused."""
        self.disconnect()
        former = self._produce((SOURCE, 0), [(None, f"{self.name}/zombie:0")])
        await self.start()
        response = await self.ask(former, self._produce_versions)
        if response is not None:
            [code] = _errors_of_produced(response).values()
            self.world.counts[ZOMBIE_FENCED] += code in FENCED
            if code == ErrorCode.NONE:
                self.world.history.wrong("zombie", f"{self.name} writes after it was fenced")


def _errors_of_added(response: Any) -> dict[int, int]:
    [topic] = response.results_by_topic_v3_and_below
    return {each.partition_index: each.partition_error_code for each in topic.results_by_partition}


def _errors_of_produced(response: Any) -> dict[int, int]:
    return {each.index: each.error_code for each in response.responses[0].partition_responses}


def _errors_of_offsets(response: Any) -> dict[int, int]:
    return {each.partition_index: each.error_code for each in response.topics[0].partitions}


def _errors_of_fetched(response: Any) -> dict[int, int]:
    if response.error_code:
        return {-1: response.error_code}
    return _errors_of_offsets(response)


class SourceProducer(TransactionalClient):
    """Writes to the source and to the compacted topic, and commits or aborts."""

    def __init__(self, world: World, name: str, version: int, transactions_max: int) -> None:
        super().__init__(world, name, version)
        self.count = self.random.randint(1, transactions_max)

    async def run(self) -> None:
        await self.start()
        for number in range(self.count):
            await self.attempt_transaction(partial(self._work, number))
            if self.random.random() < 0.5:
                await self.pause(3)

    async def _work(self, number: int, transaction: Transaction) -> bool:
        for part in range(self.random.randint(1, 3)):
            stem = f"{self.name}/{len(self.transactions)}.{number}.{part}"
            partition = SOURCE, self.random.randrange(TOPICS[SOURCE])
            values = [f"{stem}:{each}" for each in range(self.random.randint(1, 3))]
            await self.write(transaction, partition, [(None, value) for value in values])
            key = b"k%d" % self.random.randrange(self.random.choice((KEYS, RARE_KEYS)))
            await self.write(transaction, (STATES, 0), [(key, f"{stem} {'x' * 100}")])
        return self.random.random() < 0.7


class Reader(TransactionalClient):
    """Reads committed records: ``seen`` are value and next position by partition."""

    def __init__(self, world: World, name: str, *, with_session: bool = False) -> None:
        super().__init__(world, name, 0)
        self._session = SessionClient({}) if with_session else None
        self.positions = {(topic, each): 0 for topic in TOPICS for each in range(TOPICS[topic])}
        self.ends: dict[Partition, int] = {}
        """High watermarks of the last response."""
        self.seen: dict[Partition, dict[int, Written]] = {each: {} for each in self.positions}

    async def run(self) -> None:
        while not self.world.may_end:
            await self.read(self.positions, wait_ms=500)
            await self.pause(3)

    async def read_to_end(self) -> None:
        """Read until nothing more is there; wait while a transaction is open."""
        ends: dict[Partition, int] | None = None
        while ends != self.positions:
            await self.read(self.positions, wait_ms=0)
            ends = dict(self.ends)
            await self.pause(2)

    async def read(self, positions: dict[Partition, int], *, wait_ms: int) -> list[Written]:
        """Read once and advance the positions; return the committed records."""
        before = dict(positions)
        operation = self.world.operations.invoke(self.name, OperationKind.POLL)
        attempt = partial(self._fetch_once, positions, wait_ms)
        response = await self.until(attempt)
        found: list[Written] = []
        for topic in response.responses:
            for each in topic.partitions:
                partition = topic.topic, each.partition_index
                self.ends[partition] = each.high_watermark
                committed = list(self._committed(partition, each, before[partition]))
                found += committed
                if topic.topic != STATES:
                    add_polls(operation, partition, [each[1:4:2] for each in committed])
                for _, header in iter_batches(bytes(each.records or b"")):
                    positions[partition] = max(positions[partition], header.next_offset)
        for written in found:
            self.seen[written.partition][written.offset] = written
        self.world.operations.complete(operation, OperationResult.OK)
        return found

    async def _fetch_once(self, positions: dict[Partition, int], wait_ms: int) -> Any:
        """A response without any error, or None."""
        session = self._session
        if session is None:
            ids = dict.fromkeys(TOPICS, bytes(16))
            request = fetch_request(positions, ids, wait_ms=wait_ms, bytes_min=1)
        else:
            session.offsets = dict(positions)
            request = session.request(max_wait_ms=wait_ms, min_bytes=1)
        request.isolation_level = 1
        request.max_bytes = 1 << 20
        response = await self.ask(request, (4, 12) if session is None else (7, 12))
        is_valid = response is not None and not (
            response.error_code
            or any(each.error_code for topic in response.responses for each in topic.partitions)
        )
        if session is None:
            return response if is_valid and response.responses else None
        if not is_valid:
            session.restart()
            return None
        session.receive(response)
        return response

    def _committed(self, partition: Partition, found: Any, start: int) -> Iterator[Written]:
        """The records that a consumer with read_committed returns."""
        pending = sorted(
            (each.first_offset, each.producer_id) for each in found.aborted_transactions or ()
        )
        aborted: set[int] = set()
        data = bytes(found.records or b"")
        for at, header in iter_batches(data):
            while pending and pending[0][0] <= header.last_offset:
                aborted.add(pending.pop(0)[1])
            batch = data[at : at + header.size]
            if header.is_control:
                marker = parse_marker(batch)
                if marker is not None and not marker.committed:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                for record in iter_records(batch):
                    if record.offset >= start:
                        assert record.value is not None
                        yield Written(partition, record.offset, record.key, record.value.decode())


class CopyJob(Reader):
    """Copies the source, with its offsets in the transactions."""

    def __init__(self, world: World, name: str, version: int) -> None:
        super().__init__(world, name)
        self.version = version
        self.positions = {(SOURCE, each): 0 for each in range(TOPICS[SOURCE])}

    async def run(self) -> None:
        await self.start()
        restored = False
        while True:
            if not restored:
                self.positions = await self._restore()
            may_end, before = self.world.may_end, dict(self.positions)
            found = await self.read(self.positions, wait_ms=200)
            if not found:
                if may_end and self.ends == self.positions == before:
                    return
                restored = True
                await self.pause(2)
                continue
            restored = await self.attempt_transaction(partial(self._copy, found))

    async def _copy(self, found: list[Written], transaction: Transaction) -> bool:
        for index in range(TOPICS[SOURCE]):
            pairs: Pairs = [
                (None, f"{each.value}{COPIED_BY}{len(self.transactions)}")
                for each in found
                if each.partition == (SOURCE, index)
            ]
            if pairs:
                await self.write(transaction, (COPIES, index), pairs)
        await self._commit_offsets()
        return self.random.random() < 0.9

    async def _commit_offsets(self) -> None:
        producer_id, epoch = self.producer
        if self.version < 2:
            added = AddOffsetsToTxnRequest(
                transactional_id=self.name,
                producer_id=producer_id,
                producer_epoch=epoch,
                group_id=GROUP,
            )
            await self.repeat(added, (0, 3), lambda found: {0: found.error_code})
        offsets = [
            TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=""
            )
            for (_, index), offset in self.positions.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=GROUP,
            producer_id=producer_id,
            producer_epoch=epoch,
            member_id="",
            topics=[TxnOffsetCommitRequestTopic(name=SOURCE, partitions=offsets)],
        )
        versions = (5, 5) if self.version == 2 else (0, 4)
        await self.repeat(request, versions, _errors_of_offsets)

    async def _restore(self) -> dict[Partition, int]:
        indexes = list(range(TOPICS[SOURCE]))
        request = OffsetFetchRequest(
            group_id=GROUP,
            topics=[OffsetFetchRequestTopic(name=SOURCE, partition_indexes=indexes)],
            require_stable=True,
        )
        response = await self.repeat(request, (7, 7), _errors_of_fetched)
        self.world.operations.reopen(self.name)
        return {
            (SOURCE, each.partition_index): max(0, each.committed_offset)
            for each in response.topics[0].partitions
        }

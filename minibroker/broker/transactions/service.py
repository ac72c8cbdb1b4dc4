"""The transaction coordinator of an I/O worker: requests, timers and markers.

Owns the order of writing before answering, the checks for timeouts and expiry, and the requests
that write markers. The rules and what is known of each id are in ``state_machine``. It must never
make decisions about a transaction itself. Invariant: a decision to commit or abort is in the log
before it is answered, and from then on its markers are sent, after restarts too, until every
partition has one. Kafka's counterparts are ``TransactionCoordinator``, without its threads, and
``TransactionMarkerChannelManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import trio

from minibroker.broker.groups.hooks import (
    COMPLETING,
    NO_HOLD_POINTS,
    PREPARED,
    HoldPoints,
    OnState,
)
from minibroker.broker.log.producers import TransactionMarker
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.settings import (
    TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS,
    TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS,
    TRANSACTIONAL_ID_EXPIRATION_MS,
    Settings,
)
from minibroker.broker.transactions.state_machine import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    STATE_NAMES,
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkerQueue,
    PartitionsById,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionDecision,
    TransactionManager,
    TransactionMetadata,
    VerifyPartitions,
    add_partitions,
    end_transaction,
    expire,
    init_producer,
    is_expired,
    is_timed_out,
    markers_written,
    time_out,
    verify_partitions,
)
from minibroker.runtime.rpc import PeerFailed, PeerLost
from minibroker_protocol.errors import ErrorCode

_logger = logging.getLogger(__name__)

Rule = Callable[[int | None], TransactionDecision]
"""Decides about the current state, with a new producer id if one was requested."""

MarkersReply = Mapping[int, Mapping[TopicPartition, ErrorCode]]
"""Errors by producer id and partition."""

FINAL_ERRORS = frozenset({
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
})  # fmt: skip
"""Results of a marker after which its partition is done: it is written, the topic is deleted, or a
later epoch of the producer has ended this transaction."""


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_EPOCH)


MARKER_RETRY_S: Final = 0.1
"""Pause before a marker is sent again, or the end of a transaction is written again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """Settings of the transaction coordinator."""

    id_expiration_ms: int = 7 * 24 * 3_600_000
    abort_interval_s: float = 10.0
    expiry_interval_s: float = 3600.0

    @classmethod
    def from_settings(cls, settings: Settings) -> TransactionLimits:
        abort_ms = settings[TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS]
        expiry_ms = settings[TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS]
        return cls(
            id_expiration_ms=settings[TRANSACTIONAL_ID_EXPIRATION_MS],
            abort_interval_s=abort_ms / 1000,
            expiry_interval_s=expiry_ms / 1000,
        )


class TransactionAnswer(NamedTuple):
    """The answer to a request of a producer."""

    error: ErrorCode
    producer: ProducerIdAndEpoch


class TransactionEnvironment(NamedTuple):
    """What the coordinator uses of its worker."""

    worker: int
    """The number of the worker."""
    coordinates: Callable[[int], bool]
    """Whether this worker owns a partition of ``__transaction_state``, which must exist."""
    open_partition: Callable[[int], Partition]
    """Opens such a partition; called on first use."""
    transaction_version: Callable[[], int]
    """The finalized feature ``transaction.version``."""
    new_producer_id: Callable[[], Awaitable[int | None]]
    owner_of: Callable[[str, int], int]
    """The worker that owns a partition now."""
    write_markers: Callable[[int, tuple[TransactionMarker, ...]], Awaitable[MarkersReply]]
    """Writes markers at a worker; raises ``PeerLost`` or ``PeerFailed``."""
    wall_ms: Callable[[], int]
    sleep_real: Callable[[float], Awaitable[None]]
    """Sleeps in real time, also while the broker's clock is frozen."""
    hold_points: HoldPoints = NO_HOLD_POINTS


class TransactionService:
    """Transactions of one I/O worker. Call ``load`` first, then start ``run``."""

    def __init__(
        self, limits: TransactionLimits, *, partitions: int, environment: TransactionEnvironment
    ) -> None:
        self.limits = limits
        self._env = environment
        self.on_state: OnState | None = None
        self._manager = TransactionManager(
            partitions=partitions,
            open_partition=environment.open_partition,
            transaction_version=environment.transaction_version,
        )
        self._queue = MarkerQueue()
        self._wakeup = trio.Event()
        self._failed: set[str] = set()
        """Transactional ids whose markers or completion must be tried again."""
        self._failure = trio.Event()
        self._released = trio.Event()
        """Set unless markers are held."""
        self._released.set()
        self._answered = trio.Event()

    # ------------------------------------------------------------------- loading and unloading

    def load(self, partitions: Iterable[int]) -> int:
        """Load the transactional ids of the partitions; return their number.

        Decisions whose markers are not all written are carried out.
        """
        loaded = self._manager.load(partitions)
        for transactional_id in loaded:
            if self._manager.transactions[transactional_id].is_prepared:
                self._begin_markers(transactional_id)
        return len(loaded)

    @property
    def unloaded(self) -> Mapping[int, str]:
        """Partitions that could not be loaded, each with the error."""
        return self._manager.unloaded

    def reset(self, *, keep_logs: bool = False) -> None:
        """Remove all transactional ids, and release the logs, which are cleared or kept."""
        self._queue.clear()
        self._failed.clear()
        self._manager.remove_all(clear=not keep_logs)

    async def hold_markers(self) -> None:
        """Send no markers until `release_markers`; return when those that were sent are noted."""
        if self._released.is_set():
            self._released = trio.Event()
        while self._queue.is_busy:
            await self._answered.wait()

    def release_markers(self) -> None:
        """Send markers again."""
        self._released.set()

    # ----------------------------------------------------------------------------- requests

    async def init_producer(self, transactional_id: str, event: InitProducer) -> TransactionAnswer:
        """Give a producer its id and a new epoch."""
        return await self._answer(
            transactional_id,
            lambda new: init_producer(self._get(transactional_id), event, self._env.wall_ms(), new),
        )

    async def end(self, transactional_id: str, event: EndTransaction) -> TransactionAnswer:
        """Commit or abort. This is answered when the decision is stored, before the markers."""
        return await self._answer(transactional_id, self._end_rule(transactional_id, event))

    def end_at_once(self, transactional_id: str, event: EndTransaction) -> TransactionAnswer | None:
        """As ``end``; None if a producer id must be waited for."""
        return self._answer_at_once(transactional_id, self._end_rule(transactional_id, event))

    def _end_rule(self, transactional_id: str, event: EndTransaction) -> Rule:
        return lambda new: end_transaction(
            self._get(transactional_id), event, self._env.wall_ms(), new
        )

    def add_partitions(self, transactional_id: str, event: AddPartitions) -> ErrorCode:
        """Make partitions part of the transaction."""
        error = self._coordinator_error(transactional_id)
        if error is not ErrorCode.NONE:
            return error
        decision = add_partitions(self._get(transactional_id), event, self._env.wall_ms())
        return self._carry_out(transactional_id, decision)

    def verify(
        self, transactional_id: str, event: VerifyPartitions
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether each partition is in the ongoing transaction."""
        error = self._coordinator_error(transactional_id)
        if error is not ErrorCode.NONE:
            return dict.fromkeys(event.partitions, error)
        return verify_partitions(self._get(transactional_id), event)

    def describe(self, transactional_id: str) -> TransactionMetadata | ErrorCode:
        """The state of a transactional id, or the error."""
        error = self._coordinator_error(transactional_id)
        if error is not ErrorCode.NONE:
            return error
        return self._get(transactional_id) or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    def list_transactions(self) -> Iterator[tuple[str, TransactionMetadata]]:
        """All transactional ids with their states."""
        yield from self._manager.transactions.items()

    def _coordinator_error(self, transactional_id: str) -> ErrorCode:
        """The error for clients of an id that is not coordinated here, or not yet."""
        if not self._env.coordinates(self._manager.partition_of(transactional_id)):
            return ErrorCode.NOT_COORDINATOR
        if not self._manager.is_loaded(transactional_id):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE

    def _get(self, transactional_id: str) -> TransactionMetadata | None:
        return self._manager.transactions.get(transactional_id)

    async def _answer(self, transactional_id: str, rule: Rule) -> TransactionAnswer:
        """Decide and carry out, with a new producer id if the decision needs one.

        While the producer id is allocated, other requests may change the state; so the rule decides
        again.
        """
        answer = self._answer_at_once(transactional_id, rule)
        if answer is not None:
            return answer
        new_producer_id = await self._env.new_producer_id()
        answer = self._answer_at_once(transactional_id, rule, new_producer_id)
        if answer is None:  # Clients retry after a pause.
            return TransactionAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_PRODUCER)
        return answer

    def _answer_at_once(
        self, transactional_id: str, rule: Rule, new_producer_id: int | None = None
    ) -> TransactionAnswer | None:
        error = self._coordinator_error(transactional_id)
        if error is not ErrorCode.NONE:
            return TransactionAnswer(error, NO_PRODUCER)
        decision = rule(new_producer_id)
        if decision.needs_producer_id:
            return None
        error = self._carry_out(transactional_id, decision)
        return TransactionAnswer(
            error, decision.producer if error is ErrorCode.NONE else NO_PRODUCER
        )

    def _carry_out(self, transactional_id: str, decision: TransactionDecision) -> ErrorCode:
        """Write the decision, start sending markers; return the error for the client."""
        before = self._get(transactional_id)
        if decision.keep is not None:
            self._manager.transactions[transactional_id] = decision.keep
        if decision.write is not None:
            error = self._manager.store(transactional_id, decision.write, self._env.wall_ms())
            if error is not ErrorCode.NONE:
                return error
            report_transaction(self.on_state, transactional_id, before, decision.write)
            if decision.write.is_prepared:
                self._begin_markers(transactional_id)
        return decision.error

    # ------------------------------------------------------------------------------- markers

    def _begin_markers(self, transactional_id: str) -> None:
        points = self._env.hold_points
        if points.may_hold(PREPARED, transactional_id):
            points.hold(PREPARED, transactional_id, partial(self._send_markers, transactional_id))
        else:
            self._send_markers(transactional_id)

    def _send_markers(self, transactional_id: str) -> None:
        """Send the markers that a prepared transaction lacks, or complete it if it lacks none."""
        metadata = self._get(transactional_id)
        if metadata is None or not metadata.is_prepared:
            return
        if metadata.partitions:
            self._queue.add(transactional_id, metadata.partitions)
            self._wakeup.set()
        elif not self._complete(transactional_id, metadata, frozenset()):
            self._retry(transactional_id)

    def _retry(self, transactional_id: str) -> None:
        self._failed.add(transactional_id)
        self._failure.set()

    async def _run_retries(self) -> None:
        while True:
            await self._failure.wait()
            self._failure = trio.Event()
            await self._env.sleep_real(MARKER_RETRY_S)
            failed, self._failed = self._failed, set()
            for transactional_id in sorted(failed):
                self._send_markers(transactional_id)

    def _complete(
        self,
        transactional_id: str,
        metadata: TransactionMetadata,
        partitions: frozenset[TopicPartition],
    ) -> bool:
        """Note written markers; False if the completed transaction could not be stored."""
        points = self._env.hold_points
        if metadata.partitions <= partitions and points.may_hold(COMPLETING, transactional_id):
            then = partial(self._complete_released, transactional_id, metadata)
            points.hold(COMPLETING, transactional_id, then)
            return True
        return self._complete_now(transactional_id, metadata, partitions)

    def _complete_released(self, transactional_id: str, held: TransactionMetadata) -> None:
        metadata = self._get(transactional_id)
        is_same = metadata is not None and metadata.producer_epoch == held.producer_epoch
        if (
            metadata is not None
            and is_same
            and metadata.is_prepared
            and not self._complete_now(transactional_id, metadata, metadata.partitions)
        ):
            self._retry(transactional_id)

    def _complete_now(
        self,
        transactional_id: str,
        metadata: TransactionMetadata,
        partitions: frozenset[TopicPartition],
    ) -> bool:
        decision = markers_written(metadata, partitions, self._env.wall_ms())
        return self._carry_out(transactional_id, decision) is ErrorCode.NONE

    async def _run_markers(self, nursery: trio.Nursery) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup = trio.Event()
            await self._released.wait()
            for owner, batch in self._queue.take(self._env.owner_of).items():
                if owner == self._env.worker:  # At once, as the producer's next request is coming.
                    await self._send_batch(owner, batch)
                else:
                    nursery.start_soon(self._send_batch, owner, batch)

    async def _send_batch(self, owner: int, batch: PartitionsById) -> None:
        """Send markers to one owner; what fails is sent again after a pause."""
        markers = {
            transactional_id: self._marker(transactional_id, partitions)
            for transactional_id, partitions in batch.items()
        }
        try:
            reply = await self._env.write_markers(
                owner, tuple(marker for marker in markers.values() if marker is not None)
            )
        except (PeerLost, PeerFailed) as error:
            _logger.warning("markers of %d transactions are sent again: %s", len(batch), error)
            reply = {}
        for transactional_id, marker in markers.items():
            if marker is not None and not self._take_reply(transactional_id, marker, reply):
                self._retry(transactional_id)
        self._queue.sent(owner)
        self._answered.set()
        self._answered = trio.Event()
        if self._queue:
            self._wakeup.set()

    def _marker(
        self, transactional_id: str, partitions: frozenset[TopicPartition]
    ) -> TransactionMarker | None:
        metadata = self._get(transactional_id)
        if metadata is None or not metadata.is_prepared:
            return None
        return TransactionMarker(
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            committed=metadata.is_commit,
            coordinator_epoch=self._manager.coordinator_epoch(transactional_id),
            transaction_version=metadata.client_version,
            partitions=tuple(sorted(partitions)),
        )

    def _take_reply(
        self, transactional_id: str, marker: TransactionMarker, reply: MarkersReply
    ) -> bool:
        """Note the results of a marker; False if something must be sent or stored again."""
        metadata = self._get(transactional_id)
        if metadata is None or not metadata.is_prepared:
            return True
        if metadata.producer_id != marker.producer_id:
            return True  # The id was deleted and is used again.
        errors = reply.get(marker.producer_id, {})
        done = {each for each in marker.partitions if errors.get(each) in FINAL_ERRORS}
        for each, error in errors.items():
            if error is not ErrorCode.NONE:
                _logger.warning(
                    "the marker of transactional id %r for %s-%d: %s",
                    transactional_id,
                    *each,
                    error.name,
                )
        if ErrorCode.TRANSACTION_COORDINATOR_FENCED in errors.values():
            return True  # Another coordinator completes the transaction.
        return self._complete(transactional_id, metadata, frozenset(done)) and done.issuperset(
            marker.partitions
        )

    # ---------------------------------------------------------------------------------- time

    async def run(self) -> None:
        """Send markers, abort timed out transactions and delete expired ids until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_markers, nursery)
            nursery.start_soon(self._run_retries)
            nursery.start_soon(self._run_expiry)
            while True:
                await trio.sleep(self.limits.abort_interval_s)
                await self.abort_timed_out()

    async def _run_expiry(self) -> None:
        while True:
            await trio.sleep(self.limits.expiry_interval_s)
            self.delete_expired()

    async def abort_timed_out(self) -> None:
        """Abort the transactions whose timeout has passed."""
        now_ms = self._env.wall_ms()
        timed_out = [
            transactional_id
            for transactional_id, metadata in self._manager.transactions.items()
            if is_timed_out(metadata, now_ms)
        ]
        for transactional_id in timed_out:
            answer = await self._answer(transactional_id, partial(self._time_out, transactional_id))
            if answer.error is ErrorCode.NONE:
                _logger.info("the transaction of %r was aborted: timeout", transactional_id)
            else:
                _logger.warning(
                    "the transaction of %r, which has timed out, could not be aborted: %s",
                    transactional_id,
                    answer.error.name,
                )

    def _time_out(self, transactional_id: str, new_producer_id: int | None) -> TransactionDecision:
        metadata = self._get(transactional_id)
        if metadata is None:
            return TransactionDecision()
        version = self._env.transaction_version()
        return time_out(metadata, version, self._env.wall_ms(), new_producer_id)

    async def expire(self, transactional_id: str) -> ErrorCode:
        """Abort an ongoing transaction now as if it had timed out; return the error."""
        version = self._env.transaction_version()
        answer = await self._answer(
            transactional_id,
            lambda new: expire(self._get(transactional_id), version, self._env.wall_ms(), new),
        )
        return answer.error

    def delete_expired(self) -> None:
        """Delete the transactional ids that were not used for long."""
        now_ms = self._env.wall_ms()
        expired = [
            transactional_id
            for transactional_id, metadata in self._manager.transactions.items()
            if is_expired(metadata, now_ms, self.limits.id_expiration_ms)
        ]
        for transactional_id in expired:
            before = self._get(transactional_id)
            if self._manager.store(transactional_id, None, now_ms) is ErrorCode.NONE:
                report_transaction(self.on_state, transactional_id, before, None)
                _logger.info("transactional id %r has expired", transactional_id)


def report_transaction(
    on_state: OnState | None,
    transactional_id: str,
    before: TransactionMetadata | None,
    after: TransactionMetadata | None,
) -> None:
    """Report the state of a transaction if it has changed."""
    if on_state is None:
        return
    old = None if before is None else STATE_NAMES[before.state]
    new = None if after is None else STATE_NAMES[after.state]
    if old != new:
        on_state("transaction", transactional_id, old, new)

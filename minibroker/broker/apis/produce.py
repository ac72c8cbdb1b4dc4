"""Produce (0): append record batches to partitions.

Versions 0-13 are advertised, 3-13 served: brokers of 4.x advertise 0-2 too, without which older
librdkafka cannot compress (KAFKA-18659), and close connections that use them. The owner of each
partition appends or rejects its batch; the response waits for all owners. With one replica acks=1
and acks=all are the same, also if min.insync.replicas is higher: no partition needs more in-sync
replicas than it has (``Partition.effectiveMinIsr``). With acks=0 there is no response, and the
connection is closed if a batch was rejected, as Kafka does. The first batch of a transaction on a
partition is appended when the coordinator has confirmed the partition. Record bytes stay in the
request's memory until the owner has written them. A batch whose validation takes long is copied and
validated in a thread, so that the owner serves other requests in the meantime. Kafka's
``KafkaApis.handleProduceRequest``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, Final, NamedTuple

from minibroker.broker.apis.base import (
    SPECIAL,
    Api,
    CloseConnection,
    Context,
    Owner,
    SingleForm,
    SingleScope,
    WorkerScope,
)
from minibroker.broker.apis.transaction_verification import (
    ProducerSession,
    TransactionSupport,
    Verified,
    begin_verification,
    confirm,
    produce_error,
    requested_support,
    support_of,
    verify_here,
)
from minibroker.broker.log.errors import LogError, NotOneBatchError, RecordError
from minibroker.broker.log.producers import NO_GUARD, Guard
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.log.validation import (
    BatchExceedsStepError,
    PreparedBatch,
    StepBudget,
    prepare_batch,
)
from minibroker.broker.metadata.image import OFFSETS_TOPIC
from minibroker.runtime.arena import RecordsRef
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from minibroker_protocol.records import TRANSACTIONAL_BIT, parse_batch_header
from minibroker_protocol.registry import ApiKey

VALID_ACKS = (0, 1, -1)
ALL_REPLICAS = -1
ZSTD_SINCE_VERSION = 7
"""Clients with older versions do not know the codec (KIP-110)."""
GENERIC_ERRORS_SINCE = 11
"""First version whose clients know TRANSACTION_ABORTABLE."""
ADDS_PARTITIONS_SINCE = 12
"""First version whose clients leave it to the leader to add partitions (KIP-890)."""
TOPIC_IDS_SINCE: Final = 13
"""First version with topic ids."""
NO_OFFSET = -1
WITHOUT_LOG_START: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors of an append with which Kafka returns no log start offset
(``ReplicaManager.appendRecordsToLeader``).
"""
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})
"""Topics of Kafka's that only coordinators write."""

ADMIN_CLIENT_ID: Final = "__admin_client"
"""A client with this id may write them, as with Kafka (``AuthHelper``, ``ReplicaManager``)."""


class ProduceBatch(NamedTuple):
    """The records of one partition; ``ref`` is None if the client sent none."""

    topic: str
    partition: int
    ref: RecordsRef | None


class ProduceOutcome(NamedTuple):
    """The result of one partition."""

    error: int
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: int = NO_OFFSET
    message: str | None = None
    record_errors: tuple[RecordError, ...] = ()


class ProducePart(NamedTuple):
    """The batches of one owner."""

    batches: tuple[ProduceBatch, ...]
    zstd_allowed: bool
    transactional_id: str | None = None
    support: TransactionSupport = TransactionSupport.DEFAULT_ERROR


ProduceReply = dict[tuple[str, int], ProduceOutcome]

NO_TRANSACTIONAL_ID: Final = ProduceOutcome(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    message="a transactional batch needs a transactional id",
)
SEVERAL_PRODUCER_IDS: Final = ProduceOutcome(
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    message="the transactional batches have more than one producer id",
)


def split(ctx: Context, request: ProduceRequest) -> Mapping[Owner, ProducePart]:
    """The existing partitions by owner. ``merge`` adds the errors of the others."""
    if request.acks not in VALID_ACKS:
        return {}
    parts: dict[Owner, list[ProduceBatch]] = {}
    for topic in request.topic_data:
        name = ctx.topic_name(topic.name, topic.topic_id, ids_since=TOPIC_IDS_SINCE)
        if name is None or _is_reserved(ctx, name):
            continue
        for data in topic.partition_data:
            if ctx.image.partition(name, data.index) is not None:
                ref = None if data.records is None else ctx.reference(data.records)
                owner = ctx.partition_owner(name, data.index)
                parts.setdefault(owner, []).append(ProduceBatch(name, data.index, ref))
    zstd_allowed = ctx.version >= ZSTD_SINCE_VERSION
    support = TransactionSupport.DEFAULT_ERROR
    if request.transactional_id is not None:
        support = requested_support(
            ctx, generic_since=GENERIC_ERRORS_SINCE, add_since=ADDS_PARTITIONS_SINCE
        )
    return {
        owner: ProducePart(tuple(batches), zstd_allowed, request.transactional_id, support)
        for owner, batches in parts.items()
    }


def _support_of(version: int) -> TransactionSupport:
    return support_of(version, generic_since=GENERIC_ERRORS_SINCE, add_since=ADDS_PARTITIONS_SINCE)


def _is_reserved(ctx: Context, topic: str) -> bool:
    return topic in INTERNAL_TOPICS and ctx.header.client_id != ADMIN_CLIENT_ID


def execute(scope: WorkerScope, part: ProducePart) -> ProduceReply | Awaitable[ProduceReply]:
    """Append each partition's records to its log."""
    return _Execution(scope, part).run()


class _Execution:
    """The execution of one part."""

    def __init__(self, scope: WorkerScope, part: ProducePart) -> None:
        self._scope = scope
        self._part = part
        self._outcomes: ProduceReply = {}
        self._transactional: list[tuple[ProduceBatch, PreparedBatch]] = []

    def run(self) -> ProduceReply | Awaitable[ProduceReply]:
        """Append the batches; the result is awaitable if some must be verified or are large."""
        large: list[tuple[ProduceBatch, bytes]] = []
        budget = StepBudget()
        for batch in self._part.batches:
            try:
                self._take(batch, _prepare(self._scope, batch, self._part, budget))
            except BatchExceedsStepError:
                assert batch.ref is not None
                # Copied, as the memory of the request is freed when its connection closes.
                large.append((batch, bytes(self._scope.records(batch.ref))))
        if large:
            return self._append_large(large)
        return self._append_transactional() if self._transactional else self._outcomes

    def _take(self, batch: ProduceBatch, prepared: PreparedBatch | ProduceOutcome) -> None:
        """Append a batch, unless it was rejected, or is transactional."""
        if isinstance(prepared, ProduceOutcome):
            self._outcomes[batch.topic, batch.partition] = prepared
        elif prepared.header.is_transactional:
            self._transactional.append((batch, prepared))
        else:
            self._outcomes[batch.topic, batch.partition] = _append(self._scope, batch, prepared)

    async def _append_large(self, large: list[tuple[ProduceBatch, bytes]]) -> ProduceReply:
        for batch, records in large:
            self._take(batch, await _prepare_large(self._scope, batch, records))
        if not self._transactional:
            return self._outcomes
        reply = self._append_transactional()
        return await reply if isawaitable(reply) else reply

    def _append_transactional(self) -> ProduceReply | Awaitable[ProduceReply]:
        """Append batches of a transaction, at once if the partitions have records of it already."""
        transactional_id = self._part.transactional_id
        producers = {
            (prepared.header.producer_id, prepared.header.producer_epoch)
            for _, prepared in self._transactional
        }
        if transactional_id is None:
            return self._reject_transactional(NO_TRANSACTIONAL_ID)
        if len(producers) > 1:
            return self._reject_transactional(SEVERAL_PRODUCER_IDS)
        session = ProducerSession(transactional_id, *producers.pop())
        sequences = {
            (batch.topic, batch.partition): prepared.header.base_sequence
            for batch, prepared in self._transactional
        }
        begun = begin_verification(self._scope, session, sequences, self._part.support)
        if begun.unconfirmed:
            return self._confirm_and_append(session, begun)
        return self._append_verified(begun)

    def _reject_transactional(self, outcome: ProduceOutcome) -> ProduceReply:
        for batch, _ in self._transactional:
            self._outcomes[batch.topic, batch.partition] = outcome
        return self._outcomes

    async def _confirm_and_append(self, session: ProducerSession, begun: Verified) -> ProduceReply:
        verified = await confirm(self._scope, session, begun, self._part.support)
        return self._append_verified(verified)

    def _append_verified(self, verified: Verified) -> ProduceReply:
        for batch, prepared in self._transactional:
            key = batch.topic, batch.partition
            if key in verified.errors:
                error, text = produce_error(verified.errors[key], self._part.support)
                self._outcomes[key] = ProduceOutcome(error, message=text)
            else:
                guard = verified.guards[key]
                self._outcomes[key] = _append(self._scope, batch, prepared, guard)
        return self._outcomes


async def _prepare_large(
    scope: WorkerScope, batch: ProduceBatch, records: bytes
) -> PreparedBatch | ProduceOutcome:
    partition = None
    try:
        partition = scope.partition(batch.topic, batch.partition)
        if partition is None:
            return ProduceOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        prepare = partial(prepare_batch, records, partition.log.config, now_ms=scope.wall_ms())
        return await scope.run_in_thread(prepare)
    except LogError as error:
        return _rejected(error, partition)


def _is_zstd(records: memoryview) -> bool:
    try:
        return parse_batch_header(records).codec == Compression.ZSTD
    except DecodeError:
        return False  # The validation reports the error.


def _prepare(
    scope: WorkerScope, batch: ProduceBatch, part: ProducePart, budget: StepBudget
) -> PreparedBatch | ProduceOutcome:
    try:
        partition = scope.partition(batch.topic, batch.partition)
    except LogError as error:
        return _rejected(error, None)
    if partition is None:
        return ProduceOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if batch.ref is None:
        return ProduceOutcome(ErrorCode.INVALID_RECORD, message="the partition's records are null")
    records = scope.records(batch.ref)
    if not part.zstd_allowed and _is_zstd(records):
        return ProduceOutcome(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            message=f"zstd needs Produce version {ZSTD_SINCE_VERSION} or later",
        )
    try:
        return prepare_batch(records, partition.log.config, now_ms=scope.wall_ms(), budget=budget)
    except LogError as error:
        return _rejected(error, partition)


def _rejected(error: LogError, partition: Partition | None) -> ProduceOutcome:
    """The outcome of an error, for the partition if it is led here."""
    unseen = isinstance(error, NotOneBatchError) or error.code in WITHOUT_LOG_START
    return ProduceOutcome(
        error.code,
        log_start_offset=NO_OFFSET
        if partition is None or unseen
        else partition.log.log_start_offset,
        message=error.text,
        record_errors=error.records,
    )


def _append(
    scope: WorkerScope, batch: ProduceBatch, prepared: PreparedBatch, guard: Guard = NO_GUARD
) -> ProduceOutcome:
    partition = None
    try:
        partition = scope.partition(batch.topic, batch.partition)
        if partition is None:  # The topic was deleted in the meantime.
            return ProduceOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        appended = partition.append_prepared_as_leader(
            prepared, now_ms=scope.wall_ms(), guard=guard
        )
    except LogError as error:
        return _rejected(error, partition)
    if not appended.duplicate:
        assert batch.ref is not None
        count = appended.last_offset - appended.base_offset + 1
        size = len(batch.ref) if isinstance(batch.ref, memoryview) else batch.ref.length
        scope.appended(batch.topic, batch.partition, size, count)
    return ProduceOutcome(
        ErrorCode.NONE,
        appended.base_offset,
        appended.log_append_time_ms,
        appended.log_start_offset,
    )


def merge(
    ctx: Context, request: ProduceRequest, replies: Mapping[Owner, ProduceReply]
) -> ProduceResponse | None:
    """Every partition's outcome, in the order of the request."""
    outcomes: ProduceReply = {}
    for reply in replies.values():
        outcomes.update(reply)
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=list(_partitions(ctx, request, topic, outcomes)),
            )
            for topic in request.topic_data
        ]
    )
    if request.acks == 0:
        _hang_up_on_errors(response)
        return None
    return response


def _partitions(
    ctx: Context, request: ProduceRequest, topic: TopicProduceData, outcomes: ProduceReply
) -> Iterator[PartitionProduceResponse]:
    name = ctx.topic_name(topic.name, topic.topic_id, ids_since=TOPIC_IDS_SINCE)
    for data in topic.partition_data:
        outcome = outcomes.get((name or topic.name, data.index))
        if outcome is None:
            outcome = _missing_outcome(ctx, request, name, data.index)
        yield _partition_response(data, outcome)


def _missing_outcome(
    ctx: Context, request: ProduceRequest, name: str | None, partition: int
) -> ProduceOutcome:
    """The outcome of a partition that was sent to no owner."""
    if request.acks not in VALID_ACKS:
        return ProduceOutcome(ErrorCode.INVALID_REQUIRED_ACKS)
    if name is None and ctx.version >= TOPIC_IDS_SINCE:
        return ProduceOutcome(ErrorCode.UNKNOWN_TOPIC_ID)
    exists = name is not None and ctx.image.partition(name, partition) is not None
    if name is not None and exists and _is_reserved(ctx, name):
        return ProduceOutcome(
            ErrorCode.INVALID_TOPIC_EXCEPTION, message=f"clients may not append to {name}"
        )
    # If it exists by now, it was created while the request was processed.
    return ProduceOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _partition_response(
    data: PartitionProduceData, outcome: ProduceOutcome
) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=data.index,
        error_code=outcome.error,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.log_append_time_ms,
        log_start_offset=outcome.log_start_offset,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=position, batch_index_error_message=text)
            for position, text in outcome.record_errors
        ],
        error_message=outcome.message,
    )


def _hang_up_on_errors(response: ProduceResponse) -> None:
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code != ErrorCode.NONE:
                code = ErrorCode(partition.error_code)
                raise CloseConnection(
                    f"records for {topic.name}-{partition.index} sent with acks=0 were "
                    f"refused ({code.name}), and no response can say so"
                )


def execute_single(
    scope: SingleScope, version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Append the records of one partition, unless anything about them is not ordinary."""
    transactional_id, acks, _, name, topic_id, index, records = request
    if acks not in (1, ALL_REPLICAS) or records is None:
        return None
    topic = scope.image.topic_names.get(topic_id) if version >= TOPIC_IDS_SINCE else name
    if topic is None or topic in INTERNAL_TOPICS:
        return None
    worker = scope.worker
    partition = worker.open_partition(topic, index)
    if partition is None:
        return None
    if version < ZSTD_SINCE_VERSION and _is_zstd(records):
        return None
    now_ms = worker.wall_ms()
    try:
        prepared = prepare_batch(records, partition.log.config, now_ms=now_ms, budget=StepBudget())
        guard = _guard(worker, partition, version, transactional_id, prepared)
        if guard is None:
            return None
        appended = partition.append_prepared_as_leader(prepared, now_ms=now_ms, guard=guard)
    except (LogError, BatchExceedsStepError):
        return None  # The log is as it was; the three steps find the error again.
    if not appended.duplicate:
        count = appended.last_offset - appended.base_offset + 1
        worker.appended(topic, index, len(records), count)
    base_offset, _, log_append_time_ms, log_start_offset, _ = appended
    return (
        *(name, topic_id, index, ErrorCode.NONE, base_offset),
        *(log_append_time_ms, log_start_offset, None, 0),
    )


def _guard(
    worker: WorkerScope,
    partition: Partition,
    version: int,
    transactional_id: str | None,
    prepared: PreparedBatch,
) -> Guard | None:
    """The guard of a batch; None if its transaction's coordinator is not here or rejects it."""
    header = prepared.header
    if not header.attributes & TRANSACTIONAL_BIT:
        return NO_GUARD
    if transactional_id is None:
        return None
    session = ProducerSession(transactional_id, header.producer_id, header.producer_epoch)
    return verify_here(worker, session, partition, header.base_sequence, _support_of(version))


SINGLE: Final = SingleForm(
    Shape(frozenset({"topic_data", "partition_data", "responses", "partition_responses"})),
    execute_single,
)

API = Api(
    key=ApiKey.PRODUCE,
    versions=(0, 13),
    requires=SPECIAL,
    served_from=3,
    split=split,
    execute=execute,
    merge=merge,
    single=SINGLE,
    left_out=("timeout_ms: with one replica nothing is waited for",),
)

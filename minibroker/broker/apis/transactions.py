"""The requests about transactions: producer ids, what a transaction has, its end, and lists.

Each is executed by the coordinator of its transactional id, which has the rules. Clients before
the versions of ``FENCED_SINCE`` do not know PRODUCER_FENCED and get INVALID_PRODUCER_EPOCH.
Invariant: a request without a transactional id changes no transaction. In Kafka: ``KafkaApis`` and
``TransactionCoordinator``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Container, Iterator, Mapping
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar
from zlib import crc32

from minibroker.broker.apis.base import (
    SPECIAL,
    Api,
    Context,
    Owner,
    Requires,
    SingleForm,
    SingleScope,
    WorkerScope,
    all_results,
    parts_by_owner,
)
from minibroker.broker.metadata.features import TRANSACTION_VERSION, level
from minibroker.broker.metadata.image import OFFSETS_TOPIC, offsets_partition
from minibroker.broker.metadata.topics import INTERNAL_TO_CLIENTS
from minibroker.broker.patterns import (
    INSTRUCTIONS_MAX,
    PATTERN_CHARS_MAX,
    VISITS_MAX,
    CompiledPattern,
    InvalidPattern,
    PatternTooCostly,
)
from minibroker.broker.security.acl import Operation
from minibroker.broker.settings import (
    OFFSETS_TOPIC_NUM_PARTITIONS,
    TRANSACTION_MAX_TIMEOUT_MS,
)
from minibroker.broker.transactions.service import TransactionAnswer
from minibroker.broker.transactions.state_machine import (
    OTHER_STATE_NAMES,
    STATE_NAMES,
    AddPartitions,
    EndTransaction,
    InitProducer,
    ProducerIdAndEpoch,
    TransactionMetadata,
    VerifyPartitions,
    by_topic,
)
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from minibroker_protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from minibroker_protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from minibroker_protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker_protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from minibroker_protocol.messages.list_transactions import (
    TransactionState as ListedTransactionState,
)
from minibroker_protocol.registry import ApiKey


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


Event = TypeVar("Event")


class TransactionPart(NamedTuple, Generic[Event]):
    """A transactional id, and what its coordinator is asked to do."""

    transactional_id: str
    event: Event


def _known_error(ctx: Context, error: ErrorCode, fenced_since: int) -> ErrorCode:
    """The error as clients know it that got PRODUCER_FENCED in a later version."""
    if error is ErrorCode.PRODUCER_FENCED and ctx.version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


# InitProducerId (22) ------------------------------------------------------------------------------
#
# Allocate a producer id, or a new epoch for a transactional id. Versions 0-5. Without a
# transactional id a producer gets an unused id with epoch 0, whatever id it had before. An I/O
# worker takes the id from a block that the controller allocated to it, so most requests do not
# reach the controller. With a transactional id, its coordinator fences earlier producers and aborts
# their transaction; until then clients get CONCURRENT_TRANSACTIONS and retry. Before version 4,
# PRODUCER_FENCED is reported as INVALID_PRODUCER_EPOCH. In Kafka:
# ``KafkaApis.handleInitProducerIdRequest`` and ``TransactionCoordinator.handleInitProducerId``.


NO_PRODUCER: Final = -1
"""No producer id, and no epoch."""

INIT_FENCED_SINCE: Final = 4
"""First version whose clients know PRODUCER_FENCED."""


class InitProducerPart(NamedTuple):
    """A transactional id, and the producer that continues if there is one."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None


class InitProducerReply(NamedTuple):
    """The producer id and epoch, or the error."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER


_InitPart = InitProducerPart | None


def _split_init(ctx: Context, request: InitProducerIdRequest) -> Mapping[Owner, _InitPart]:
    """Choose the coordinator of the transactional id.

    Without one, choose an I/O worker by connection; any of them can allocate a producer id.
    """
    if _init_problem(ctx, request) is not ErrorCode.NONE:
        return {}
    transactional_id = request.transactional_id
    if transactional_id is None:
        return {crc32(ctx.caller.connection_id.encode()) % ctx.workers: None}
    expected = None
    if request.producer_id != NO_PRODUCER:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    part = InitProducerPart(transactional_id, request.transaction_timeout_ms, expected)
    return {ctx.transaction_owner(transactional_id): part}


def _init_problem(ctx: Context, request: InitProducerIdRequest) -> ErrorCode:
    only_one_given = (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_PRODUCER)
    if only_one_given or request.transactional_id == "":
        return ErrorCode.INVALID_REQUEST
    timeout_ms_max = ctx.settings[TRANSACTION_MAX_TIMEOUT_MS]
    if request.transactional_id is not None and not (
        0 < request.transaction_timeout_ms <= timeout_ms_max
    ):
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


async def _init_producer(scope: WorkerScope, part: _InitPart) -> InitProducerReply:
    """Allocate a producer id, or the next epoch of a transactional id."""
    if part is not None:
        version = level(scope.image.features, TRANSACTION_VERSION)
        event = InitProducer(part.timeout_ms, part.expected, version)
        error, producer = await scope.transactions.init_producer(part.transactional_id, event)
        return InitProducerReply(error, *producer)
    producer_id = await scope.next_producer_id()
    if producer_id is None:  # Kafka's error for this: clients retry after a pause.
        return InitProducerReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return InitProducerReply(ErrorCode.NONE, producer_id, 0)


def _merge_init(
    ctx: Context, request: InitProducerIdRequest, replies: Mapping[Owner, InitProducerReply]
) -> InitProducerIdResponse:
    reply = next(iter(replies.values()), None) or InitProducerReply(_init_problem(ctx, request))
    return InitProducerIdResponse(
        error_code=_known_error(ctx, reply.error, INIT_FENCED_SINCE),
        producer_id=reply.producer_id,
        producer_epoch=reply.epoch,
    )


INIT_PRODUCER_ID = Api(
    key=ApiKey.INIT_PRODUCER_ID,
    versions=(0, 5),
    requires=SPECIAL,
    split=_split_init,
    execute=_init_producer,
    merge=_merge_init,
)


# AddPartitionsToTxn (24) --------------------------------------------------------------------------
#
# Make partitions part of a transaction. Versions 0-5. Clients send one transaction in versions 0-3.
# If one of its partitions cannot be added, none is, and the others get OPERATION_NOT_ATTEMPTED.
# Partition leaders send several in version 4 and 5; they add partitions, or with verify_only ask
# whether they were added (KIP-890). Before version 2, PRODUCER_FENCED is reported as
# INVALID_PRODUCER_EPOCH. In Kafka: ``KafkaApis.handleAddPartitionsToTxnRequest``.


FENCED_SINCE: Final = 2
"""First version whose clients know PRODUCER_FENCED."""

SEVERAL_TRANSACTIONS_SINCE: Final = 4
"""First version with several transactions; only brokers send it."""

PartitionErrors = dict[tuple[str, int], ErrorCode]


def transactions_of(
    ctx: Context, request: AddPartitionsToTxnRequest
) -> list[AddPartitionsToTxnTransaction]:
    """The transactions of a request, in the format of the newer versions."""
    if ctx.version >= SEVERAL_TRANSACTIONS_SINCE:
        return request.transactions
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        verify_only=False,
        topics=request.v3_and_below_topics,
    )
    return [transaction]


def _split_partitions(
    ctx: Context, request: AddPartitionsToTxnRequest
) -> Mapping[Owner, AddPartitionsPart]:
    """Send each transaction to its coordinator, unless one of its partitions is rejected."""
    return parts_by_owner(
        (
            ctx.transaction_owner(each.transactional_id),
            PartitionsToAdd(
                each.transactional_id,
                each.producer_id,
                each.producer_epoch,
                each.verify_only,
                tuple(partitions_of(each.topics)),
                client_version=2 if ctx.version >= SEVERAL_TRANSACTIONS_SINCE else 0,
            ),
        )
        for each in transactions_of(ctx, request)
        if each.transactional_id and not rejected_partitions(ctx, each.topics)
    )


def partitions_of(topics: list[AddPartitionsToTxnTopic]) -> Iterator[tuple[str, int]]:
    """The partitions of a transaction, in the order of the request."""
    return ((topic.name, index) for topic in topics for index in topic.partitions)


def rejected_partitions(
    ctx: Context, topics: list[AddPartitionsToTxnTopic], denied: Container[str] = ()
) -> PartitionErrors:
    """An error for each partition if one of them does not exist or is ``denied``."""
    internal = INTERNAL_TO_CLIENTS if ctx.version < SEVERAL_TRANSACTIONS_SINCE else frozenset()
    errors: PartitionErrors = {}
    for name, index in partitions_of(topics):
        error = ErrorCode.OPERATION_NOT_ATTEMPTED
        if name in denied or name in internal:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif ctx.image.partition(name, index) is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        errors[name, index] = error
    attempted = all(error is ErrorCode.OPERATION_NOT_ATTEMPTED for error in errors.values())
    return {} if attempted else errors


def add_partitions(scope: WorkerScope, part: AddPartitionsPart) -> AddPartitionsReply:
    """Add the partitions of each transaction, or verify them."""
    errors: dict[str, PartitionErrors] = {}
    for each in part:  # A request may name a transaction twice.
        errors.setdefault(each.transactional_id, {}).update(_add_to_one(scope, each))
    return errors


def _add_to_one(scope: WorkerScope, part: PartitionsToAdd) -> PartitionErrors:
    producer = ProducerIdAndEpoch(part.producer_id, part.producer_epoch)
    added = frozenset(part.partitions)
    if part.verify_only:
        return scope.transactions.verify(part.transactional_id, VerifyPartitions(producer, added))
    event = AddPartitions(producer, added, part.client_version)
    error = scope.transactions.add_partitions(part.transactional_id, event)
    return dict.fromkeys(part.partitions, error)


def _merge_partitions(
    ctx: Context, request: AddPartitionsToTxnRequest, replies: Mapping[Owner, AddPartitionsReply]
) -> AddPartitionsToTxnResponse:
    found = all_results(replies)
    results = []
    for each in transactions_of(ctx, request):
        errors = dict.fromkeys(partitions_of(each.topics), _INVALID)
        errors |= rejected_partitions(ctx, each.topics)
        errors |= found.get(each.transactional_id, {})
        results.append(transaction_result(ctx, each, errors))
    return transactions_response(ctx, results)


_INVALID: Final = ErrorCode.INVALID_REQUEST
"""Error of a transaction without a transactional id."""


def transaction_result(
    ctx: Context, transaction: AddPartitionsToTxnTransaction, errors: PartitionErrors
) -> AddPartitionsToTxnResult:
    """The result of one transaction."""

    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=_known_error(
                            ctx, errors[topic.name, index], FENCED_SINCE
                        ),
                    )
                    for index in topic.partitions
                ],
            )
            for topic in transaction.topics
        ],
    )


def transactions_response(
    ctx: Context, results: list[AddPartitionsToTxnResult]
) -> AddPartitionsToTxnResponse:
    """The response in the format of the request's version."""
    if ctx.version >= SEVERAL_TRANSACTIONS_SINCE:
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)


def _add_partitions_in_one_step(
    scope: SingleScope, version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Add partitions of one topic if they exist and this worker coordinates the transaction."""
    transactional_id, producer_id, producer_epoch, name, indexes = request
    topic = scope.image.topics.get(name)
    if version >= SEVERAL_TRANSACTIONS_SINCE or not transactional_id or not indexes:
        return None
    if topic is None or name in INTERNAL_TO_CLIENTS:
        return None
    if not all(0 <= index < len(topic.partitions) for index in indexes):
        return None
    added = tuple((name, index) for index in indexes)
    part = PartitionsToAdd(
        transactional_id, producer_id, producer_epoch, False, added, client_version=0
    )
    if any(_add_to_one(scope.worker, part).values()):
        return None  # None was added: the three steps find the error again.
    return 0, ErrorCode.NONE, name, [(index, ErrorCode.NONE) for index in indexes]


_ADD_PARTITIONS_SINGLE: Final = SingleForm(
    Shape(
        frozenset({"v3_and_below_topics", "results_by_topic_v3_and_below"}),
        frozenset({"partitions", "results_by_partition"}),
    ),
    _add_partitions_in_one_step,
)

ADD_PARTITIONS_TO_TXN = Api(
    key=ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 5),
    requires=SPECIAL,
    split=_split_partitions,
    execute=add_partitions,
    merge=_merge_partitions,
    single=_ADD_PARTITIONS_SINGLE,
)


# AddOffsetsToTxn (25) -----------------------------------------------------------------------------
#
# Make the committed offsets of a group part of a transaction. Versions 0-4. It adds the group's
# partition of ``__consumer_offsets``. Only clients of transaction versions 0 and 1 send it. Before
# version 2, PRODUCER_FENCED is reported as INVALID_PRODUCER_EPOCH. In Kafka:
# ``KafkaApis.handleAddOffsetsToTxnRequest``.


def _split_offsets(
    ctx: Context, request: AddOffsetsToTxnRequest
) -> Mapping[Owner, TransactionPart[AddPartitions]]:
    if not request.transactional_id:
        return {}
    index = offsets_partition(request.group_id, ctx.settings[OFFSETS_TOPIC_NUM_PARTITIONS])
    event = AddPartitions(
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        frozenset({(OFFSETS_TOPIC, index)}),
        client_version=0,
    )
    owner = ctx.transaction_owner(request.transactional_id)
    return {owner: TransactionPart(request.transactional_id, event)}


def _add_offsets(scope: WorkerScope, part: TransactionPart[AddPartitions]) -> ErrorCode:
    return scope.transactions.add_partitions(part.transactional_id, part.event)


def _merge_offsets(
    ctx: Context, _request: AddOffsetsToTxnRequest, replies: Mapping[Owner, ErrorCode]
) -> AddOffsetsToTxnResponse:
    error = next(iter(replies.values()), ErrorCode.INVALID_REQUEST)
    return AddOffsetsToTxnResponse(error_code=_known_error(ctx, error, FENCED_SINCE))


ADD_OFFSETS_TO_TXN = Api(
    key=ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    requires=(
        Requires(Operation.WRITE, Meaning.TRANSACTIONAL_ID),
        Requires(Operation.READ, Meaning.GROUP),
    ),
    split=_split_offsets,
    execute=_add_offsets,
    merge=_merge_offsets,
)


# EndTxn (26) --------------------------------------------------------------------------------------
#
# Commit or abort a transaction. Versions 0-5. The answer is sent when the decision is stored,
# before the markers are written, so the next request of the producer may get
# CONCURRENT_TRANSACTIONS for a while. Version 5 is sent by clients of transaction version 2 and
# returns the epoch of the next transaction (KIP-890). Before version 2, PRODUCER_FENCED is reported
# as INVALID_PRODUCER_EPOCH. In Kafka: ``KafkaApis.handleEndTxnRequest``.


EPOCH_BUMP_SINCE: Final = 5
"""First version of clients that continue with the epoch in the response."""


def _split_end(
    ctx: Context, request: EndTxnRequest
) -> Mapping[Owner, TransactionPart[EndTransaction]]:
    if not request.transactional_id:
        return {}
    event = _end_event(
        ctx.version, request.producer_id, request.producer_epoch, committed=request.committed
    )
    owner = ctx.transaction_owner(request.transactional_id)
    return {owner: TransactionPart(request.transactional_id, event)}


def _end_event(
    version: int, producer_id: int, producer_epoch: int, *, committed: bool
) -> EndTransaction:
    client_version = 2 if version >= EPOCH_BUMP_SINCE else 0
    return EndTransaction(
        ProducerIdAndEpoch(producer_id, producer_epoch), committed, client_version
    )


async def _end(scope: WorkerScope, part: TransactionPart[EndTransaction]) -> TransactionAnswer:
    """Decide, and start to write markers."""
    return await scope.transactions.end(part.transactional_id, part.event)


def _merge_end(
    ctx: Context, _request: EndTxnRequest, replies: Mapping[Owner, TransactionAnswer]
) -> EndTxnResponse:
    """Return the producer id and epoch to continue with, or the error."""
    for error, producer in replies.values():
        if error is ErrorCode.PRODUCER_FENCED and ctx.version < FENCED_SINCE:
            return EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH)
        return EndTxnResponse(
            error_code=error, producer_id=producer.producer_id, producer_epoch=producer.epoch
        )
    return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)


def _end_in_one_step(
    scope: SingleScope, version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Decide at once, if this worker coordinates the transaction and nothing is wrong."""
    transactional_id, producer_id, producer_epoch, committed = request
    if not transactional_id:
        return None
    event = _end_event(version, producer_id, producer_epoch, committed=committed)
    answer = scope.worker.transactions.end_at_once(transactional_id, event)
    if answer is None or answer.error is not ErrorCode.NONE:
        return None
    return 0, ErrorCode.NONE, *answer.producer


END_TXN = Api(
    key=ApiKey.END_TXN,
    versions=(0, 5),
    requires=(Requires(Operation.WRITE, Meaning.TRANSACTIONAL_ID),),
    split=_split_end,
    execute=_end,
    merge=_merge_end,
    single=SingleForm(Shape(), _end_in_one_step),
)


# DescribeTransactions (65) ------------------------------------------------------------------------
#
# Describe transactional ids and their transactions. Version 0. A transaction whose markers are
# being written lists the partitions that have none yet. In Kafka:
# ``KafkaApis.handleDescribeTransactionsRequest``.


DescribeTransactionsPart = tuple[str, ...]
DescribeTransactionsReply = dict[str, TransactionMetadata | ErrorCode]


def _split_description(
    ctx: Context, request: DescribeTransactionsRequest
) -> Mapping[Owner, DescribeTransactionsPart]:
    ids = filter(None, dict.fromkeys(request.transactional_ids))
    return parts_by_owner((ctx.transaction_owner(each), each) for each in ids)


def _describe(scope: WorkerScope, part: DescribeTransactionsPart) -> DescribeTransactionsReply:
    """Return the state of each transactional id, or the error."""
    return {each: scope.transactions.describe(each) for each in part}


def _merge_descriptions(
    _ctx: Context,
    request: DescribeTransactionsRequest,
    replies: Mapping[Owner, DescribeTransactionsReply],
) -> DescribeTransactionsResponse:
    found = all_results(replies)
    return DescribeTransactionsResponse(
        transaction_states=[
            _described_transaction(each, found.get(each, ErrorCode.INVALID_REQUEST))
            for each in request.transactional_ids
        ]
    )


def _described_transaction(
    transactional_id: str, described: TransactionMetadata | ErrorCode
) -> TransactionState:
    if isinstance(described, ErrorCode):
        return TransactionState(error_code=described, transactional_id=transactional_id)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=STATE_NAMES[described.state],
        transaction_timeout_ms=described.timeout_ms,
        transaction_start_time_ms=described.start_ms,
        producer_id=described.producer_id,
        producer_epoch=described.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(described.partitions)
        ],
    )


DESCRIBE_TRANSACTIONS = Api(
    key=ApiKey.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    requires=SPECIAL,
    split=_split_description,
    execute=_describe,
    merge=_merge_descriptions,
)


# ListTransactions (66) ----------------------------------------------------------------------------
#
# List transactional ids, or those of some states, producers or durations. Versions 0-2; version 1
# adds a minimum duration, version 2 a pattern of the ids (KIP-1152) in RE2's syntax. Another text
# gets INVALID_REGULAR_EXPRESSION, and so does a pattern that takes too long for the ids that there
# are. A transactional id without an open transaction has an unlimited duration, as in Kafka.
# Unknown states match nothing and are returned. The request is sent to every worker, which compares
# ids with the pattern in a thread. In Kafka: ``TransactionStateManager.listTransactionStates``.


class ListTransactionsPart(NamedTuple):
    """The filters; an empty set and a negative duration match everything."""

    states: frozenset[str]
    producer_ids: frozenset[int]
    duration_ms: int
    pattern: str
    """What the whole id must match; empty for all."""


class ListTransactionsReply(NamedTuple):
    """The transactional ids of one worker, with an error if some of them are not loaded."""

    error: ErrorCode
    transactions: tuple[ListedTransactionState, ...]


def _split_listing(
    ctx: Context, request: ListTransactionsRequest
) -> Mapping[Owner, ListTransactionsPart]:
    """Send the request to every worker, unless its pattern is invalid."""
    if _pattern_problem(request):
        return {}
    part = ListTransactionsPart(
        frozenset(request.state_filters),
        frozenset(request.producer_id_filters),
        request.duration_filter,
        request.transactional_id_pattern or "",
    )
    return dict.fromkeys(range(ctx.workers), part)


def _pattern_problem(request: ListTransactionsRequest) -> bool:
    try:
        CompiledPattern(request.transactional_id_pattern or "")
    except InvalidPattern:
        return True
    return False


def _list(
    scope: WorkerScope, part: ListTransactionsPart
) -> ListTransactionsReply | Awaitable[ListTransactionsReply]:
    if scope.transactions.unloaded:
        return ListTransactionsReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ())
    now_ms = scope.wall_ms()
    found = tuple(
        ListedTransactionState(
            transactional_id=key,
            producer_id=metadata.producer_id,
            transaction_state=STATE_NAMES[metadata.state],
        )
        for key, metadata in scope.transactions.list_transactions()
        if _matches(metadata, part, now_ms)
    )
    if part.pattern:
        return scope.run_in_thread(partial(_matching, found, part.pattern))
    return ListTransactionsReply(ErrorCode.NONE, found)


def _matching(found: tuple[ListedTransactionState, ...], pattern: str) -> ListTransactionsReply:
    """Those whose ids match the pattern."""
    compiled = CompiledPattern(pattern)
    try:
        matching = set(compiled.select(each.transactional_id for each in found))
    except PatternTooCostly:
        return ListTransactionsReply(ErrorCode.INVALID_REGULAR_EXPRESSION, ())
    listed = tuple(each for each in found if each.transactional_id in matching)
    return ListTransactionsReply(ErrorCode.NONE, listed)


def _matches(metadata: TransactionMetadata, part: ListTransactionsPart, now_ms: int) -> bool:
    return (
        (not part.states or STATE_NAMES[metadata.state] in part.states)
        and (not part.producer_ids or metadata.producer_id in part.producer_ids)
        and (part.duration_ms < 0 or now_ms - metadata.start_ms > part.duration_ms)
    )


def _merge_listing(
    _ctx: Context,
    request: ListTransactionsRequest,
    replies: Mapping[Owner, ListTransactionsReply],
) -> ListTransactionsResponse:
    """Merge the transactional ids of all workers, sorted."""
    if _pattern_problem(request):
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    error = max((reply.error for reply in replies.values()), default=ErrorCode.NONE)
    if error is not ErrorCode.NONE:
        return ListTransactionsResponse(error_code=error)
    known = OTHER_STATE_NAMES.union(STATE_NAMES.values())
    return ListTransactionsResponse(
        unknown_state_filters=[
            name for name in dict.fromkeys(request.state_filters) if name not in known
        ],
        transaction_states=sorted(
            (listed for reply in replies.values() for listed in reply.transactions),
            key=lambda listed: listed.transactional_id,
        ),
    )


LIST_TRANSACTIONS = Api(
    key=ApiKey.LIST_TRANSACTIONS,
    versions=(0, 2),
    requires=SPECIAL,
    split=_split_listing,
    execute=_list,
    merge=_merge_listing,
    left_out=(
        "scripts in patterns, such as \\p{Greek}: there is no table of them",
        f"patterns of more than {PATTERN_CHARS_MAX:,} characters or {INSTRUCTIONS_MAX:,} steps",
        f"patterns that need more than {VISITS_MAX:,} visits of their steps for the present ids",
    ),
)


APIS = (
    INIT_PRODUCER_ID,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
)

"""ListTransactions (66): list transactional ids, or those of some states, producers or durations.

Versions 0-2; version 1 adds a minimum duration, version 2 a pattern of the ids (KIP-1152) in RE2's
syntax. Another text gets INVALID_REGULAR_EXPRESSION, and so does a pattern that takes too long
for the ids that there are. A transactional id without an open transaction has an unlimited
duration, as in Kafka. Unknown states match nothing and are returned.
The request is sent to every worker, which compares ids with the pattern in a thread. In Kafka:
``TransactionStateManager.listTransactionStates``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import NamedTuple

from minibroker.broker.apis.base import SPECIAL, Api, Context, Owner, WorkerScope
from minibroker.broker.patterns.expression import (
    INSTRUCTIONS_MAX,
    VISITS_MAX,
    CompiledPattern,
    PatternTooCostly,
)
from minibroker.broker.patterns.expression_parser import PATTERN_CHARS_MAX, InvalidPattern
from minibroker.broker.transactions.metadata import (
    OTHER_STATE_NAMES,
    STATE_NAMES,
    TransactionMetadata,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from minibroker_protocol.registry import ApiKey


class ListTransactionsPart(NamedTuple):
    """The filters; an empty set and a negative duration match everything."""

    states: frozenset[str]
    producer_ids: frozenset[int]
    duration_ms: int
    pattern: str
    """What the whole id must match; empty for all."""


class ListedTransaction(NamedTuple):
    """A transactional id in the list."""

    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsReply(NamedTuple):
    """The transactional ids of one worker, with an error if some of them are not loaded."""

    error: ErrorCode
    transactions: tuple[ListedTransaction, ...]


def split(ctx: Context, request: ListTransactionsRequest) -> Mapping[Owner, ListTransactionsPart]:
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
    """Whether the pattern is invalid."""
    try:
        CompiledPattern(request.transactional_id_pattern or "")
    except InvalidPattern:
        return True
    return False


def execute(
    scope: WorkerScope, part: ListTransactionsPart
) -> ListTransactionsReply | Awaitable[ListTransactionsReply]:
    """List this worker's transactional ids."""
    if scope.transactions.unloaded:
        return ListTransactionsReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ())
    now_ms = scope.wall_ms()
    found = tuple(
        ListedTransaction(key, metadata.producer_id, STATE_NAMES[metadata.state])
        for key, metadata in scope.transactions.list_transactions()
        if _matches(metadata, part, now_ms)
    )
    if part.pattern:
        return scope.run_in_thread(partial(_matching, found, part.pattern))
    return ListTransactionsReply(ErrorCode.NONE, found)


def _matching(found: tuple[ListedTransaction, ...], pattern: str) -> ListTransactionsReply:
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


def merge(
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
    found = sorted(listed for reply in replies.values() for listed in reply.transactions)
    return ListTransactionsResponse(
        unknown_state_filters=[
            name for name in dict.fromkeys(request.state_filters) if name not in known
        ],
        transaction_states=[
            TransactionState(
                transactional_id=listed.transactional_id,
                producer_id=listed.producer_id,
                transaction_state=listed.state,
            )
            for listed in found
        ],
    )


API: Api[
    ListTransactionsRequest, ListTransactionsPart, ListTransactionsReply, ListTransactionsResponse
] = Api(
    key=ApiKey.LIST_TRANSACTIONS,
    versions=(0, 2),
    requires=SPECIAL,
    split=split,
    execute=execute,
    merge=merge,
    left_out=(
        "scripts in patterns, such as \\p{Greek}: there is no table of them",
        f"patterns of more than {PATTERN_CHARS_MAX:,} characters or {INSTRUCTIONS_MAX:,} steps",
        f"patterns that need more than {VISITS_MAX:,} visits of their steps for the present ids",
    ),
)

"""ListTransactions (66): list transactional ids, or those of some states, producers or durations.

Versions 0-1; version 1 adds a minimum duration. A transactional id without an open transaction has
an unlimited duration, as in Kafka. Unknown states match nothing and are returned. The request is
sent to every worker. In Kafka: ``TransactionStateManager.listTransactionStates``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.apis.base import Api, Context, Owner, WorkerScope
from minibroker.coordinator.transactions.metadata import TransactionMetadata
from minibroker.coordinator.transactions.states import OTHER_STATE_NAMES, STATE_NAMES
from protocol.errors import ErrorCode
from protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from protocol.registry import ApiKey


class ListTransactionsPart(NamedTuple):
    """The filters; an empty set and a negative duration match everything."""

    states: frozenset[str]
    producer_ids: frozenset[int]
    duration_ms: int


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
    """Send the request to every worker."""
    part = ListTransactionsPart(
        frozenset(request.state_filters),
        frozenset(request.producer_id_filters),
        request.duration_filter,
    )
    return dict.fromkeys(range(ctx.workers), part)


def execute(scope: WorkerScope, part: ListTransactionsPart) -> ListTransactionsReply:
    """List this worker's transactional ids."""
    if scope.transactions.unloaded:
        return ListTransactionsReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ())
    now_ms = scope.wall_ms()
    return ListTransactionsReply(
        ErrorCode.NONE,
        tuple(
            ListedTransaction(key, metadata.producer_id, STATE_NAMES[metadata.state])
            for key, metadata in scope.transactions.list_transactions()
            if _matches(metadata, part, now_ms)
        ),
    )


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
    versions=(0, 1),
    split=split,
    execute=execute,
    merge=merge,
    left_out=("version 2, a pattern of transactional ids: patterns are not served yet",),
)

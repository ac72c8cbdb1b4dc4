"""Broker actions that an I/O worker carries out on its groups, transactions and logs.

Owns the translation of actions into events of groups and transactions and calls of logs. It must
never know the request for an action. Invariant: an action changes only what this worker owns.
Kafka has no equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias

from minibroker.broker.groups.events import (
    AssignmentPlanned,
    GroupAction,
    MemberExpired,
    MemberFenced,
    RebalanceRequested,
)
from minibroker.broker.groups.subscription import encode_assignment
from minibroker.broker.log.errors import LogError
from minibroker.broker.process.messages import ActionReply, ActionRequest
from minibroker_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from minibroker.broker.apis.fetch_watches import FetchWatches
    from minibroker.broker.groups.service import GroupService
    from minibroker.broker.log.replica_manager import Partition
    from minibroker.broker.metadata.image import Image
    from minibroker.broker.transactions.service import TransactionService


class ActingWorker(Protocol):
    """What actions need of a worker."""

    groups: GroupService
    transactions: TransactionService
    fetch_watches: FetchWatches

    @property
    def image(self) -> Image: ...

    def wall_ms(self) -> int: ...

    def owns(self, topic: str, partition: int) -> bool: ...

    def partition(self, topic: str, index: int) -> Partition | None: ...


OnLog: TypeAlias = Callable[[str, str, str, str], object]
"""Is called with what changed of a log, its name, and the offset before and after."""


async def act(worker: ActingWorker, action: ActionRequest, on_log: OnLog) -> ActionReply:
    """Carry out an action; the reply says how much it has changed, or why nothing."""
    if action.group is not None:
        taken = worker.groups.act(action.group, _group_event(action))
        return ActionReply(*taken)
    if action.transactional_id is not None:
        error = await worker.transactions.expire(action.transactional_id)
        if error is ErrorCode.NOT_COORDINATOR:  # Before the first transactional id.
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        text = f"{action.transactional_id!r} has no transaction that could be aborted"
        is_done = error is ErrorCode.NONE
        return ActionReply(error, "" if is_done else text, int(is_done))
    try:
        return ActionReply(affected=_act_on_logs(worker, action, on_log))
    except LogError as error:
        return ActionReply(error.code, error.text)


def _group_event(action: ActionRequest) -> GroupAction:
    if action.action == "rebalance":
        return RebalanceRequested()
    if action.action == "assign":
        given = action.assignment or {}
        return AssignmentPlanned(
            {member: encode_assignment(topics) for member, topics in given.items()}
        )
    kind = MemberExpired if action.action == "expire_member" else MemberFenced
    return kind(action.member or "")


def _act_on_logs(worker: ActingWorker, action: ActionRequest, on_log: OnLog) -> int:
    """Roll segments, or drop expired ones; return their number."""
    affected = 0
    for index, partition in _owned(worker, action):
        log, name = partition.log, f"{action.topic}-{index}"
        if action.action == "roll":
            before = log.segments.active.base_offset
            log.roll(now_ms=worker.wall_ms())
            after = log.segments.active.base_offset
            if before != after:
                affected += 1
                on_log("active_segment", name, str(before), str(after))
            continue
        before = log.log_start_offset
        dropped = log.apply_retention(now_ms=worker.wall_ms())
        if dropped:
            on_log("log_start", name, str(before), str(log.log_start_offset))
            worker.fetch_watches.changed(action.topic or "", index)
        affected += dropped
    return affected


def _owned(worker: ActingWorker, action: ActionRequest) -> Iterator[tuple[int, Partition]]:
    name = action.topic or ""
    topic = worker.image.topics.get(name)
    for index in range(len(topic.partitions) if topic else 0):
        if action.partition in (None, index) and worker.owns(name, index):
            partition = worker.partition(name, index)
            if partition is not None:
                yield index, partition

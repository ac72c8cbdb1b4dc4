"""Actions become events of groups and transactions, and calls of the logs that a worker owns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.broker.groups.events import (
    ActionTaken,
    AssignmentPlanned,
    GroupAction,
    MemberExpired,
    MemberFenced,
    RebalanceRequested,
)
from minibroker.broker.groups.membership import encode_assignment
from minibroker.broker.log.errors import LogError
from minibroker.broker.process.messages import ActionReply, ActionRequest
from minibroker.broker.roles.worker_requests import act
from minibroker_protocol.errors import ErrorCode


class Log:
    """A log that counts what is done to it."""

    def __init__(self, size: int) -> None:
        self.segments = SimpleNamespace(active=SimpleNamespace(size=size, base_offset=3))
        self.log_start_offset = 1
        self.rolls = 0
        self.fails = False

    def roll(self, *, now_ms: int) -> None:
        assert now_ms == 5
        if self.fails:
            raise LogError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")
        self.rolls += 1
        if self.segments.active.size:
            self.segments.active.base_offset = 7

    def apply_retention(self, *, now_ms: int) -> int:
        assert now_ms == 5
        if not self.segments.active.size:
            return 0
        self.log_start_offset = 3
        return 2


class Worker:
    """A worker that owns partitions 0 to 2 of 4; partition 2 does not exist yet."""

    def __init__(self) -> None:
        self.image = SimpleNamespace(topics={"t": SimpleNamespace(partitions=range(4))})
        self.logs = [Log(10), Log(0)]
        self.events: list[tuple[str, GroupAction]] = []
        self.changed: list[tuple[str, int]] = []
        self.error = ErrorCode.NONE
        self.notes: list[tuple[str, str, str, str]] = []
        self.groups = SimpleNamespace(act=self._act)
        self.shares = SimpleNamespace(
            expire_acquisition=self._act_on_shares, set_delivery_count=self._act_on_shares
        )
        self.share_calls: list[tuple[object, ...]] = []
        self.transactions = SimpleNamespace(expire=self._expire)
        self.fetch_watches = SimpleNamespace(changed=lambda *at: self.changed.append(at))

    def _act(self, group_id: str, event: GroupAction) -> ActionTaken:
        self.events.append((group_id, event))
        return ActionTaken(affected=3)

    async def _act_on_shares(self, *asked: object) -> tuple[ErrorCode, int]:
        self.share_calls.append(asked)
        return self.error, 4

    async def _expire(self, transactional_id: str) -> ErrorCode:
        assert transactional_id == "tx"
        return self.error

    def on_log(self, *changed: str) -> None:
        what, name, before, after = changed
        self.notes.append((what, name, before, after))

    def wall_ms(self) -> int:
        return 5

    def owns(self, topic: str, partition: int) -> bool:
        return topic == "t" and partition < 3

    def partition(self, topic: str, index: int) -> Any:
        del topic
        return SimpleNamespace(log=self.logs[index]) if index < 2 else None


@pytest.fixture
def worker() -> Any:
    return Worker()


@pytest.mark.parametrize(
    ("action", "event"),
    [
        (ActionRequest("rebalance", "g"), RebalanceRequested()),
        (ActionRequest("expire_member", "g", "m"), MemberExpired("m")),
        (ActionRequest("fence_member", "g", "m"), MemberFenced("m")),
        (
            ActionRequest("assign", "g", assignment={"m": {"t": [0]}}),
            AssignmentPlanned({"m": encode_assignment({"t": [0]})}),
        ),
    ],
)
async def test_groups_get_events(worker: Any, action: ActionRequest, event: GroupAction) -> None:
    assert await act(worker, action, worker.on_log) == ActionReply(affected=3)
    assert worker.events == [("g", event)]


async def test_transactions_expire(worker: Any) -> None:
    action = ActionRequest("expire_transaction", transactional_id="tx")
    assert await act(worker, action, worker.on_log) == ActionReply(affected=1)
    worker.error = ErrorCode.INVALID_TXN_STATE
    reply = await act(worker, action, worker.on_log)
    assert (reply.error, reply.affected) == (ErrorCode.INVALID_TXN_STATE, 0)
    worker.error = ErrorCode.NOT_COORDINATOR
    assert (await act(worker, action, worker.on_log)).error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_records_of_share_groups_are_those_of_owned_partitions(worker: Any) -> None:
    action = ActionRequest("expire_acquisition", "g", topic="t")
    assert await act(worker, action, worker.on_log) == ActionReply(affected=8)
    everywhere = (0, 2**63 - 1)
    assert worker.share_calls == [(("g", "t", at), None, everywhere) for at in (0, 1)]
    worker.share_calls.clear()
    action = ActionRequest(
        "set_delivery_count", "g", "m", None, None, "t", 1, 2, 3, delivery_count=4
    )
    assert await act(worker, action, worker.on_log) == ActionReply(affected=4)
    assert worker.share_calls == [(("g", "t", 1), 4, "m", (2, 3))]
    worker.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    reply = await act(worker, action, worker.on_log)
    assert reply == ActionReply(worker.error, "t-1 could not be stored")


async def test_logs_with_records_are_rolled(worker: Any) -> None:
    assert (await act(worker, ActionRequest("roll", topic="t"), worker.on_log)).affected == 1
    assert (
        await act(worker, ActionRequest("roll", topic="t", partition=1), worker.on_log)
    ).affected == 0
    assert (
        await act(worker, ActionRequest("roll", topic="t", partition=3), worker.on_log)
    ).affected == 0
    assert [log.rolls for log in worker.logs] == [1, 2]
    assert worker.notes == [("active_segment", "t-0", "3", "7")]


async def test_watchers_of_shortened_logs_are_told(worker: Any) -> None:
    assert (await act(worker, ActionRequest("retain", topic="t"), worker.on_log)).affected == 2
    assert worker.changed == [("t", 0)]
    assert worker.notes == [("log_start", "t-0", "1", "3")]
    assert (await act(worker, ActionRequest("retain", topic="gone"), worker.on_log)).affected == 0


async def test_failure_of_a_log_is_returned(worker: Any) -> None:
    worker.logs[0].fails = True
    reply = await act(worker, ActionRequest("roll", topic="t"), worker.on_log)
    assert reply == ActionReply(ErrorCode.KAFKA_STORAGE_ERROR, "no space")

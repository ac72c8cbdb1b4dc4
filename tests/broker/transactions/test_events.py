"""Decisions without a write answer at once and name no producer."""

from __future__ import annotations

from minibroker.broker.transactions.events import TransactionDecision
from minibroker_protocol.errors import ErrorCode


def test_decision_is_success_without_write_by_default() -> None:
    decision = TransactionDecision()
    assert decision.error is ErrorCode.NONE
    assert decision.producer == (-1, -1)
    assert decision.write is None
    assert decision.keep is None
    assert not decision.needs_producer_id

"""Outcomes of requests of which nothing could be done."""

from __future__ import annotations

from minibroker.broker.metadata.outcomes import (
    duplicate_topic_outcome,
    reject_all,
    unavailable_rejection,
)
from minibroker.broker.metadata.store.tree import UnavailableError, UnwritableError
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker_protocol.errors import ErrorCode


def test_rejected_topics_are_reported_in_request_order() -> None:
    refusal = ChangeRejected(ErrorCode.KAFKA_STORAGE_ERROR, "full")
    topics, updates = reject_all(["b", "a"], refusal)
    assert [(each.name, each.rejection) for each in topics] == [("b", refusal), ("a", refusal)]
    assert updates == []


def test_duplicate_topic_is_reported_as_invalid_request() -> None:
    outcome = duplicate_topic_outcome("a")
    assert outcome.rejection is not None
    assert outcome.rejection.code is ErrorCode.INVALID_REQUEST


def test_changes_time_out_while_store_cannot_be_reached() -> None:
    rejection = unavailable_rejection(UnavailableError("/a", "no ZooKeeper answered"))
    assert rejection.code is ErrorCode.REQUEST_TIMED_OUT
    assert "no ZooKeeper answered" in rejection.text


def test_changes_fail_while_store_cannot_be_written() -> None:
    rejection = unavailable_rejection(UnwritableError("/a", "the disk is full"))
    assert rejection.code is ErrorCode.KAFKA_STORAGE_ERROR

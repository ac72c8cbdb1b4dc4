"""Events and results are immutable, picklable, and all handled."""

from __future__ import annotations

import pickle
from typing import get_args

import pytest

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.events import (
    Event,
    JoinedMember,
    JoinResult,
    LeavingMember,
    SyncRequested,
)


def test_handlers_cover_every_event() -> None:
    assert set(ClassicGroup.HANDLERS) == set(get_args(Event))
    assert set(ConsumerGroup.HANDLERS) == set(get_args(Event))


def test_events_are_immutable() -> None:
    event = SyncRequested(waiter=1, member_id="m", generation=1)
    with pytest.raises(AttributeError):
        event.generation = 2  # type: ignore[misc]


def test_results_are_picklable() -> None:
    result = JoinResult(member_id="m", members=(JoinedMember("m", None, b"x"),))
    assert pickle.loads(pickle.dumps(result)) == result
    assert pickle.loads(pickle.dumps(LeavingMember("m"))) == LeavingMember("m")

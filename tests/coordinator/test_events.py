"""The vocabulary: complete, immutable, and fit to travel."""

from __future__ import annotations

import pickle
from typing import get_args

import pytest

from minibroker.coordinator.events import Event, JoinedMember, JoinResult, Leaver, SyncRequested
from minibroker.coordinator.machine import HANDLERS


def test_every_event_has_a_handler() -> None:
    assert set(HANDLERS) == set(get_args(Event))


def test_events_cannot_change_after_the_fact() -> None:
    event = SyncRequested(waiter=1, member_id="m", generation=1)
    with pytest.raises(AttributeError):
        event.generation = 2  # type: ignore[misc]


def test_results_travel_between_processes() -> None:
    result = JoinResult(member_id="m", members=(JoinedMember("m", None, b"x"),))
    assert pickle.loads(pickle.dumps(result)) == result
    assert pickle.loads(pickle.dumps(Leaver("m"))) == Leaver("m")

"""Packed events are unpacked unchanged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.activity.events import ActivityEvent, pack, unpack
from tests.lab.activity.strategies import events


@given(st.lists(events()))
def test_packed_events_round_trip(events: list[ActivityEvent]) -> None:
    assert unpack(pack(events)) == events

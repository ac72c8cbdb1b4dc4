"""The states of a connection, as a playbook: events with ``>>``, the expected state with ``<<``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.network.connection_state import (
    HISTORY_MAX,
    TRANSITIONS,
    ChannelEvent,
    ChannelState,
    ConnectionState,
    InvalidChannelTransition,
)


class Playbook:
    """One connection; ends well only when the last event's state was expected."""

    def __init__(self) -> None:
        self.connection = ConnectionState()
        self.unasked: list[ChannelEvent] = []

    def __rshift__(self, event: ChannelEvent) -> Playbook:
        assert not self.unasked, f"nobody asked for the state after {self.unasked}"
        self.connection.on(event)
        self.unasked.append(event)
        return self

    def __lshift__(self, state: ChannelState) -> Playbook:
        assert self.connection.state is state
        self.unasked.clear()
        return self


@pytest.fixture
def play() -> Iterator[Playbook]:
    playbook = Playbook()
    yield playbook
    assert not playbook.unasked, f"nobody asked for the state after {playbook.unasked}"


def test_sequential_requests_return_to_idle(play: Playbook) -> None:
    for _ in range(2):
        play >> ChannelEvent.REQUEST_RECEIVED << ChannelState.MUTED
        play >> ChannelEvent.RESPONSE_READY << ChannelState.RESPONSE_PENDING
        play >> ChannelEvent.RESPONSE_SENT << ChannelState.NOT_MUTED


def test_request_without_response_returns_to_idle(play: Playbook) -> None:
    (
        play
        >> ChannelEvent.REQUEST_RECEIVED
        << ChannelState.MUTED
        >> ChannelEvent.NO_RESPONSE
        << ChannelState.NOT_MUTED
    )


@pytest.mark.parametrize(
    "before",
    [
        [],
        [ChannelEvent.REQUEST_RECEIVED],
        [ChannelEvent.REQUEST_RECEIVED, ChannelEvent.RESPONSE_READY],
    ],
    ids=["reading", "muted", "responding"],
)
def test_close_is_allowed_in_any_state_once(play: Playbook, before: list[ChannelEvent]) -> None:
    for event in before:
        play.connection.on(event)
    play >> ChannelEvent.CLOSE << ChannelState.CLOSED
    with pytest.raises(InvalidChannelTransition):
        play >> ChannelEvent.CLOSE


def test_second_request_in_flight_raises_with_the_history() -> None:
    connection = ConnectionState()
    connection.on(ChannelEvent.REQUEST_RECEIVED)
    with pytest.raises(InvalidChannelTransition, match="MUTED, after: request received") as caught:
        connection.on(ChannelEvent.REQUEST_RECEIVED)
    assert (caught.value.state, caught.value.event) == (
        ChannelState.MUTED,
        ChannelEvent.REQUEST_RECEIVED,
    )
    assert caught.value.history == (ChannelEvent.REQUEST_RECEIVED,)
    assert connection.state is ChannelState.MUTED


def test_history_is_bounded() -> None:
    connection = ConnectionState()
    for _ in range(HISTORY_MAX):
        connection.on(ChannelEvent.REQUEST_RECEIVED)
        connection.on(ChannelEvent.NO_RESPONSE)
    with pytest.raises(InvalidChannelTransition) as caught:
        connection.on(ChannelEvent.RESPONSE_SENT)
    assert len(caught.value.history) == HISTORY_MAX


def test_transition_table_covers_every_state() -> None:
    assert set(TRANSITIONS) == set(ChannelState)
    reached = {state for events in TRANSITIONS.values() for state in events.values()}
    assert reached == set(ChannelState)


@given(st.lists(st.sampled_from(ChannelEvent)))
def test_random_transitions_keep_at_most_one_request_in_flight(events: list[ChannelEvent]) -> None:
    connection, in_flight = ConnectionState(), 0
    for event in events:
        try:
            connection.on(event)
        except InvalidChannelTransition:
            continue
        in_flight += event is ChannelEvent.REQUEST_RECEIVED
        in_flight -= event in (ChannelEvent.NO_RESPONSE, ChannelEvent.RESPONSE_SENT)
        assert in_flight in (0, 1)
        if connection.state is ChannelState.NOT_MUTED:
            assert in_flight == 0


def test_throttled_connection_is_unmuted_after_response_and_throttle(play: Playbook) -> None:
    for _ in range(2):
        (
            play
            >> ChannelEvent.REQUEST_RECEIVED
            << ChannelState.MUTED
            >> ChannelEvent.THROTTLE_STARTED
            << ChannelState.HELD
        )
        play >> ChannelEvent.RESPONSE_READY << ChannelState.THROTTLED_RESPONSE_PENDING
        play >> ChannelEvent.RESPONSE_SENT << ChannelState.THROTTLED
        play >> ChannelEvent.THROTTLE_ENDED << ChannelState.NOT_MUTED


def test_response_and_throttle_may_end_in_either_order(play: Playbook) -> None:
    (
        play
        >> ChannelEvent.REQUEST_RECEIVED
        << ChannelState.MUTED
        >> ChannelEvent.THROTTLE_STARTED
        << ChannelState.HELD
    )
    play >> ChannelEvent.RESPONSE_READY << ChannelState.THROTTLED_RESPONSE_PENDING
    play >> ChannelEvent.THROTTLE_ENDED << ChannelState.RESPONSE_PENDING
    play >> ChannelEvent.RESPONSE_SENT << ChannelState.NOT_MUTED


def test_throttled_request_without_response_is_unmuted_after_throttle(play: Playbook) -> None:
    (
        play
        >> ChannelEvent.REQUEST_RECEIVED
        << ChannelState.MUTED
        >> ChannelEvent.THROTTLE_STARTED
        << ChannelState.HELD
    )
    (
        play
        >> ChannelEvent.NO_RESPONSE
        << ChannelState.THROTTLED
        >> ChannelEvent.THROTTLE_ENDED
        << ChannelState.NOT_MUTED
    )


def test_response_may_be_delayed_twice(play: Playbook) -> None:
    play >> ChannelEvent.REQUEST_RECEIVED << ChannelState.MUTED
    for _ in range(2):
        (
            play
            >> ChannelEvent.THROTTLE_STARTED
            << ChannelState.HELD
            >> ChannelEvent.THROTTLE_ENDED
            << ChannelState.MUTED
        )
    (
        play
        >> ChannelEvent.RESPONSE_READY
        << ChannelState.RESPONSE_PENDING
        >> ChannelEvent.RESPONSE_SENT
        << ChannelState.NOT_MUTED
    )


@pytest.mark.parametrize(
    "before",
    [
        [ChannelEvent.THROTTLE_STARTED],
        [ChannelEvent.THROTTLE_ENDED],
        [ChannelEvent.REQUEST_RECEIVED, ChannelEvent.RESPONSE_READY, ChannelEvent.THROTTLE_STARTED],
        [ChannelEvent.REQUEST_RECEIVED, ChannelEvent.THROTTLE_STARTED, ChannelEvent.RESPONSE_SENT],
        [
            ChannelEvent.REQUEST_RECEIVED,
            ChannelEvent.THROTTLE_STARTED,
            ChannelEvent.THROTTLE_STARTED,
        ],
        [
            ChannelEvent.REQUEST_RECEIVED,
            ChannelEvent.THROTTLE_STARTED,
            ChannelEvent.NO_RESPONSE,
            ChannelEvent.REQUEST_RECEIVED,
        ],
    ],
)
def test_throttle_in_invalid_state_raises(before: list[ChannelEvent]) -> None:
    connection = ConnectionState()
    for event in before[:-1]:
        connection.on(event)
    with pytest.raises(InvalidChannelTransition):
        connection.on(before[-1])

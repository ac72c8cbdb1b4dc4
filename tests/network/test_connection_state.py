"""The states of a connection, as a playbook: events with ``>>``, the expected state with ``<<``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.network.connection_state import (
    HISTORY_MAX,
    TRANSITIONS,
    ConnectionState,
    Event,
    InvalidTransition,
    State,
)


class Playbook:
    """One connection; ends well only when the last event's state was expected."""

    def __init__(self) -> None:
        self.connection = ConnectionState()
        self.unasked: list[Event] = []

    def __rshift__(self, event: Event) -> Playbook:
        assert not self.unasked, f"nobody asked for the state after {self.unasked}"
        self.connection.on(event)
        self.unasked.append(event)
        return self

    def __lshift__(self, state: State) -> Playbook:
        assert self.connection.state is state
        self.unasked.clear()
        return self


@pytest.fixture
def play() -> Iterator[Playbook]:
    playbook = Playbook()
    yield playbook
    assert not playbook.unasked, f"nobody asked for the state after {playbook.unasked}"


def test_requests_one_after_the_other(play: Playbook) -> None:
    for _ in range(2):
        play >> Event.REQUEST_RECEIVED << State.MUTED
        play >> Event.RESPONSE_READY << State.RESPONSE_PENDING
        play >> Event.RESPONSE_SENT << State.NOT_MUTED


def test_a_request_that_gets_no_response(play: Playbook) -> None:
    play >> Event.REQUEST_RECEIVED << State.MUTED >> Event.NO_RESPONSE << State.NOT_MUTED


@pytest.mark.parametrize(
    "before",
    [[], [Event.REQUEST_RECEIVED], [Event.REQUEST_RECEIVED, Event.RESPONSE_READY]],
    ids=["reading", "muted", "responding"],
)
def test_it_may_close_at_any_time_but_once(play: Playbook, before: list[Event]) -> None:
    for event in before:
        play.connection.on(event)
    play >> Event.CLOSE << State.CLOSED
    with pytest.raises(InvalidTransition):
        play >> Event.CLOSE


def test_a_second_request_in_flight_is_a_bug_that_tells_its_story() -> None:
    connection = ConnectionState()
    connection.on(Event.REQUEST_RECEIVED)
    with pytest.raises(InvalidTransition, match="MUTED, after: request received") as caught:
        connection.on(Event.REQUEST_RECEIVED)
    assert (caught.value.state, caught.value.event) == (State.MUTED, Event.REQUEST_RECEIVED)
    assert caught.value.history == (Event.REQUEST_RECEIVED,)
    assert connection.state is State.MUTED


def test_the_story_is_bounded() -> None:
    connection = ConnectionState()
    for _ in range(HISTORY_MAX):
        connection.on(Event.REQUEST_RECEIVED)
        connection.on(Event.NO_RESPONSE)
    with pytest.raises(InvalidTransition) as caught:
        connection.on(Event.RESPONSE_SENT)
    assert len(caught.value.history) == HISTORY_MAX


def test_the_table_knows_every_state() -> None:
    assert set(TRANSITIONS) == set(State)
    reached = {state for events in TRANSITIONS.values() for state in events.values()}
    assert reached == set(State)


@given(st.lists(st.sampled_from(Event)))
def test_at_most_one_request_is_in_flight_whatever_happens(events: list[Event]) -> None:
    connection, in_flight = ConnectionState(), 0
    for event in events:
        try:
            connection.on(event)
        except InvalidTransition:
            continue
        in_flight += event is Event.REQUEST_RECEIVED
        in_flight -= event in (Event.NO_RESPONSE, Event.RESPONSE_SENT)
        assert in_flight in (0, 1)
        if connection.state is State.NOT_MUTED:
            assert in_flight == 0


def test_a_throttled_client_is_read_when_both_are_over(play: Playbook) -> None:
    for _ in range(2):
        play >> Event.REQUEST_RECEIVED << State.MUTED >> Event.THROTTLE_STARTED << State.HELD
        play >> Event.RESPONSE_READY << State.THROTTLED_RESPONSE_PENDING
        play >> Event.RESPONSE_SENT << State.THROTTLED
        play >> Event.THROTTLE_ENDED << State.NOT_MUTED


def test_in_either_order(play: Playbook) -> None:
    play >> Event.REQUEST_RECEIVED << State.MUTED >> Event.THROTTLE_STARTED << State.HELD
    play >> Event.RESPONSE_READY << State.THROTTLED_RESPONSE_PENDING
    play >> Event.THROTTLE_ENDED << State.RESPONSE_PENDING
    play >> Event.RESPONSE_SENT << State.NOT_MUTED


def test_a_throttled_request_without_a_response(play: Playbook) -> None:
    play >> Event.REQUEST_RECEIVED << State.MUTED >> Event.THROTTLE_STARTED << State.HELD
    play >> Event.NO_RESPONSE << State.THROTTLED >> Event.THROTTLE_ENDED << State.NOT_MUTED


def test_an_answer_may_be_kept_back_twice(play: Playbook) -> None:
    play >> Event.REQUEST_RECEIVED << State.MUTED
    for _ in range(2):
        play >> Event.THROTTLE_STARTED << State.HELD >> Event.THROTTLE_ENDED << State.MUTED
    play >> Event.RESPONSE_READY << State.RESPONSE_PENDING >> Event.RESPONSE_SENT << State.NOT_MUTED


@pytest.mark.parametrize(
    "before",
    [
        [Event.THROTTLE_STARTED],
        [Event.THROTTLE_ENDED],
        [Event.REQUEST_RECEIVED, Event.RESPONSE_READY, Event.THROTTLE_STARTED],
        [Event.REQUEST_RECEIVED, Event.THROTTLE_STARTED, Event.RESPONSE_SENT],
        [Event.REQUEST_RECEIVED, Event.THROTTLE_STARTED, Event.THROTTLE_STARTED],
        [Event.REQUEST_RECEIVED, Event.THROTTLE_STARTED, Event.NO_RESPONSE, Event.REQUEST_RECEIVED],
    ],
)
def test_a_throttle_at_the_wrong_moment_is_a_bug(before: list[Event]) -> None:
    connection = ConnectionState()
    for event in before[:-1]:
        connection.on(event)
    with pytest.raises(InvalidTransition):
        connection.on(before[-1])

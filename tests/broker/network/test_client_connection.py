"""Facts of a client connection, its states as a playbook, and connections by their last use."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.client_connection import (
    HISTORY_MAX,
    SHOWN_MAX,
    TRANSITIONS,
    ChannelEvent,
    ChannelState,
    ClientConnection,
    ConnectionState,
    IdleConnections,
    InvalidChannelTransition,
)
from minibroker.broker.security.principal import Principal
from minibroker.runtime.stream import memory_stream_pair
from minibroker_protocol.registry import ApiKey

ACCEPTED = AcceptedConnection("PLAINTEXT", ("127.0.0.1", 9092), ("10.0.0.7", 51234), 7)


def client() -> ClientConnection:
    return ClientConnection(ACCEPTED, memory_stream_pair()[1], 12.5)


def test_new_connection_has_the_accepted_facts() -> None:
    view = client().view(used=12.5)
    assert view.connection_id == ACCEPTED.connection_id
    assert (view.listener, view.host, view.port) == ("PLAINTEXT", "10.0.0.7", 51234)
    assert (view.number, view.opened, view.used) == (7, 12.5, 12.5)
    assert (view.state, view.in_flight) == ("reading", None)
    assert (view.client_id, view.software_name, view.software_version) == (None, None, None)
    assert view.principal == "User:ANONYMOUS"


def test_ipv4_client_on_ipv6_socket_has_its_ipv4_address() -> None:
    peer = ("::ffff:10.0.0.7", 51234)
    one = ClientConnection(ACCEPTED._replace(peer=peer), memory_stream_pair()[1], 12.5)
    assert one.caller.client_host == one.view(used=12.5).host == "10.0.0.7"


def test_request_in_flight_is_reported() -> None:
    one = client()
    one.state.on(ChannelEvent.REQUEST_RECEIVED)
    one.in_flight = ApiKey.FETCH
    one.client_id = "me"
    one.caller = one.caller._replace(principal=Principal("User", "alice"))
    one.set_software("librdkafka", "2.6")
    view = one.view(used=12.5)
    assert (view.state, view.in_flight, view.client_id) == ("muted", 1, "me")
    assert view.principal == "User:alice"
    assert (view.software_name, view.software_version) == ("librdkafka", "2.6")
    assert pickle.loads(pickle.dumps(view)) == view


def test_client_software_name_is_truncated() -> None:
    one = client()
    one.client_id = "i" * 10_000
    one.caller = one.caller._replace(principal=Principal("User", "n" * 10_000))
    one.set_software("n" * 10_000, "v" * 10_000)
    view = one.view(used=12.5)
    for words in (view.principal, view.client_id, view.software_name, view.software_version):
        assert words is not None
        assert len(words) == SHOWN_MAX


async def test_closing_ends_whatever_waits_in_its_scope() -> None:
    one = client()
    assert one.close_reason is CloseReason.CLIENT_CLOSED
    with one.scope:
        one.close(CloseReason.IDLE, "too long")
        await trio.sleep_forever()
    assert (one.close_reason, one.close_text) == (CloseReason.IDLE, "too long")


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


def test_names_are_ordered_by_last_use() -> None:
    idle: IdleConnections[str] = IdleConnections()
    for now, name in enumerate(["a", "b", "c", "a"]):
        idle.use(name, now)
    assert idle.oldest_use() == 1
    assert idle.idle_since(2) == ["b", "c"]
    assert idle.idle_since(0.9) == []
    assert idle.last_use("a") == 3
    idle.forget("b")
    idle.forget("b")
    assert idle.last_use("b") is None
    assert idle.idle_since(9) == ["c", "a"]


def test_idle_since_without_names_is_empty() -> None:
    idle: IdleConnections[str] = IdleConnections()
    assert idle.oldest_use() is None
    assert idle.idle_since(9) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3))), st.integers(0, 100))
def test_prefix_lookup_matches_linear_search(uses: list[tuple[int, int]], before: int) -> None:
    idle: IdleConnections[int] = IdleConnections()
    last: dict[int, int] = {}
    now = 0
    for name, later in uses:
        now += later
        idle.use(name, now)
        last[name] = now
    expected = {name for name, used in last.items() if used <= before}
    assert set(idle.idle_since(before)) == expected
    assert idle.oldest_use() == min(last.values(), default=None)


def test_in_order_yields_names_by_last_use() -> None:
    order: IdleConnections[str] = IdleConnections()
    for number, name in enumerate(["a", "b", "a"]):
        order.use(name, float(number))
    assert list(order.in_order()) == [("b", 1.0), ("a", 2.0)]

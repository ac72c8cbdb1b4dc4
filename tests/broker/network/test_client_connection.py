"""Facts of a client connection, for requests and for the console."""

from __future__ import annotations

import pickle

import trio

from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.client_connection import SHOWN_MAX, ClientConnection
from minibroker.broker.network.connection_state import ChannelEvent
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

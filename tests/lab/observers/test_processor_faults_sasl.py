"""Fault rules for the requests that authenticate a connection, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from minibroker.testing import MiniBroker
from minibroker.testing.faults import FaultHandle
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.network.raw_client import RawClient
from tests.broker.security.tokens import plain

SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.jaas.config": 'x.PlainLoginModule required user_alice="secret";',
    "connections.max.reauth.ms": 60_000,
}
HANDSHAKE = SaslHandshakeRequest(mechanism="PLAIN")
TOKEN = SaslAuthenticateRequest(auth_bytes=plain("alice", "secret"))
FAILED = int(ErrorCode.SASL_AUTHENTICATION_FAILED)


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings=SETTINGS) as started:
        started.freeze()
        yield started


@pytest.fixture
def client(broker: MiniBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as connected:
        yield connected


def is_served(client: RawClient) -> bool:
    """Whether the connection is authenticated."""
    return bool(client.ask(MetadataRequest(topics=[]), 12).brokers)


@pytest.mark.parametrize(
    ("fields", "is_authenticated"), [({"at": "before"}, False), ({"at": "after"}, True)]
)
def test_authentication_is_answered_with_an_error(
    broker: MiniBroker, client: RawClient, fields: dict[str, Any], is_authenticated: bool
) -> None:
    with broker.faults as faults:
        faults.add(
            "error", api="SaslAuthenticate", error="SASL_AUTHENTICATION_FAILED", first=1, **fields
        )
        client.ask(HANDSHAKE, 1)
        assert client.ask(TOKEN, 2).error_code == FAILED
    if not is_authenticated:
        assert client.ask(TOKEN, 2).error_code == 0
    assert is_served(client)


def test_handshake_and_versions_are_selected_by_their_apis(
    broker: MiniBroker, client: RawClient
) -> None:
    with broker.faults as faults:
        seen: list[FaultHandle] = [
            faults.add("observe", api=api, principal="User:ANONYMOUS", client_id="raw")
            for api in ("ApiVersions", "SaslHandshake", "SaslAuthenticate")
        ]
        client.ask(ApiVersionsRequest(), 0)
        client.ask(HANDSHAKE, 1)
        client.ask(TOKEN, 2)
        assert [each.hits for each in seen] == [1, 1, 1]


def test_token_waits_until_a_rule_releases_it(broker: MiniBroker, client: RawClient) -> None:
    with broker.faults as faults:
        held = faults.add("hold", api="SaslAuthenticate", at="before")
        client.ask(HANDSHAKE, 1)
        client.send(TOKEN, 2)
        held.wait()
        assert not client.is_readable()
        assert held.release() == 1
        assert client.receive(TOKEN, 2).error_code == 0
    assert is_served(client)


def test_connection_is_closed_in_the_middle_of_a_handshake(
    broker: MiniBroker, client: RawClient
) -> None:
    with broker.faults as faults:
        faults.add("disconnect", api="SaslHandshake", at="middle", bytes=5)
        client.send(HANDSHAKE, 1)
        assert len(client.receive_bytes(100)) == 5


def test_replaced_lifetime_does_not_change_when_the_session_ends(
    broker: MiniBroker, client: RawClient
) -> None:
    with broker.faults as faults:
        faults.add("replace", api="SaslAuthenticate", response={"session_lifetime_ms": 10**9})
        client.ask(HANDSHAKE, 1)
        assert client.ask(TOKEN, 2).session_lifetime_ms == 10**9
    assert is_served(client)
    broker.advance(60_001)
    client.send(MetadataRequest(topics=[]), 12)
    assert client.receive_bytes(1) == b""


def test_reauthentication_is_selected(broker: MiniBroker, client: RawClient) -> None:
    client.ask(HANDSHAKE, 1)
    client.ask(TOKEN, 2)
    with broker.faults as faults:
        faults.add("error", api="SaslAuthenticate", error="58", principal="User:alice")
        client.ask(HANDSHAKE, 1)
        assert client.ask(TOKEN, 2).error_code == FAILED

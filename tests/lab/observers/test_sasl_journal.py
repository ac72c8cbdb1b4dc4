"""Requests that authenticate a connection are recorded without their secrets."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from minibroker.testing import MiniBroker
from minibroker.testing.journal import RecordedJournal
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.network.raw_client import RawClient
from tests.broker.security.tokens import plain

SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.jaas.config": 'x.PlainLoginModule required user_alice="opensesame";',
    "connections.max.reauth.ms": 60_000,
    "connection.failed.authentication.delay.ms": 0,
    "journal.enable": True,
}
HANDSHAKE = SaslHandshakeRequest(mechanism="PLAIN")
TOKEN = plain("alice", "opensesame")


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings=SETTINGS) as started:
        yield started


@pytest.fixture
def journal(broker: MiniBroker) -> RecordedJournal:
    return broker.journal.start()


@pytest.fixture
def client(broker: MiniBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers, "alice-app") as connected:
        yield connected


def exchanges(journal: RecordedJournal) -> list[dict[str, Any]]:
    """The requests and responses up to the first one after the authentication."""
    found = [
        each for each in journal.entries(decode=True) if each["kind"] in {"request", "response"}
    ]
    kept = [
        base64.b64decode(each["frame"]) for each in journal.entries(frames=True) if each["frame"]
    ]
    assert not any(b"sesame" in frame for frame in kept)
    return found


def authenticate(client: RawClient) -> None:
    client.ask(HANDSHAKE, 1)
    assert client.ask(SaslAuthenticateRequest(auth_bytes=TOKEN), 2).error_code == 0


def test_authentication_is_recorded_without_its_token(
    journal: RecordedJournal, client: RawClient
) -> None:
    client.ask(ApiVersionsRequest(), 3)
    authenticate(client)
    authenticate(client)  # Again, within the session.
    found = exchanges(journal)
    step = [("request", "SaslHandshake"), ("response", "SaslHandshake")]
    step += [("request", "SaslAuthenticate"), ("response", "SaslAuthenticate")]
    versions = [("request", "ApiVersions"), ("response", "ApiVersions")]
    assert [(each["kind"], each["api"]) for each in found] == [*versions, *step, *step]
    assert {each["client_id"] for each in found} == {"alice-app"}
    assert [each["correlation_id"] for each in found] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    _, _, _, offered, token, accepted, *_ = found
    assert offered["body"]["mechanisms"] == ["PLAIN"]
    assert token["body"] is None
    assert token["frame_bytes"] > len(TOKEN)
    assert accepted["body"]["session_lifetime_ms"] == 60_000
    assert accepted["stages"]["total"] > 0


def test_failed_authentication_is_found_by_its_error(
    journal: RecordedJournal, client: RawClient
) -> None:
    client.ask(HANDSHAKE, 1)
    client.ask(SaslAuthenticateRequest(auth_bytes=plain("alice", "notsesame")), 2)
    journal.assert_in_order(
        {"kind": "request", "api": "SaslAuthenticate"},
        {"kind": "response", "error": "SASL_AUTHENTICATION_FAILED"},
        {"kind": "connection_closed"},
    )
    exchanges(journal)


def test_tokens_without_header_are_recorded_by_their_size(
    journal: RecordedJournal, client: RawClient
) -> None:
    client.ask(HANDSHAKE, 0)
    client.send_bytes(len(TOKEN).to_bytes(4, "big") + TOKEN)
    assert client.receive_frame() == bytes(4)
    assert client.ask(MetadataRequest(topics=[]), 9).brokers
    request, response = exchanges(journal)[2:4]
    assert (request["kind"], request["frame_bytes"]) == ("request", len(TOKEN))
    assert (response["kind"], response["frame_bytes"]) == ("response", 0)
    assert (request["api"], response["api"], response["client_id"]) == (None, None, "alice-app")


@pytest.mark.parametrize("premature", [TOKEN, b"opensesame" * 3])
def test_bytes_that_are_no_request_are_not_kept(
    journal: RecordedJournal, client: RawClient, premature: bytes
) -> None:
    client.send_bytes(len(premature).to_bytes(4, "big") + premature)
    assert client.receive_frame() == b""
    journal.wait_for(kind="connection_closed")
    (request,) = exchanges(journal)
    assert (request["api"], request["frame_bytes"]) == (None, len(premature))


def test_request_before_authentication_is_recorded(
    journal: RecordedJournal, client: RawClient
) -> None:
    client.send(MetadataRequest(topics=[]), 9)
    assert client.receive_frame() == b""
    journal.assert_happened(kind="request", api="Metadata", client_id="alice-app")

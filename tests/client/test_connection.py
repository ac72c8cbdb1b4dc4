from __future__ import annotations

import ssl
import subprocess
import sys
from typing import Any

import pytest
import trio

from minibroker.broker.settings import HostPort
from minibroker.client.connection import (
    DEFAULT_BOOTSTRAP,
    PLAINTEXT,
    BootstrapServers,
    BrokerConnection,
    ClientSecurity,
    foreign_protocol,
    parse_bootstrap,
)
from minibroker.client.errors import (
    ApiNotSupported,
    BrokerError,
    BrokerUnreachable,
    InvalidArgument,
    Remedy,
)
from minibroker.client.kafka_client import KafkaClient
from minibroker.client.security import plain, scram
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeResponse
from minibroker_protocol.registry import ApiKey
from tests.client.fake_broker import in_thread


def test_bootstrap_servers_default_to_local_plaintext() -> None:
    assert BootstrapServers() == (DEFAULT_BOOTSTRAP, PLAINTEXT)
    assert PLAINTEXT == (None, None, None)


def test_bootstrap_module_does_not_import_ssl() -> None:
    code = "import sys, minibroker.client.connection; print('ssl' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_bootstrap_servers_without_port_raise_with_an_example() -> None:
    assert parse_bootstrap("a:1, b:2") == [HostPort("a", 1), HostPort("b", 2)]
    with pytest.raises(InvalidArgument, match=r"bootstrap server 'localhost': .*127\.0\.0\.1:9092"):
        parse_bootstrap("localhost")


async def serve_bytes(nursery: trio.Nursery, reply: bytes) -> str:
    """Listen on a port that answers any request with ``reply`` and closes the connection."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(reply)
        await stream.aclose()

    listeners = await nursery.start(trio.serve_tcp, answer, 0)
    return f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"


async def test_connect_to_unused_port_suggests_starting_a_broker(unused_port: int) -> None:
    address = f"127.0.0.1:{unused_port}"
    with pytest.raises(BrokerUnreachable, match=rf"^nothing listens on {address}$") as caught:
        await in_thread(lambda: KafkaClient(address))
    assert caught.value.remedy is Remedy.START_BROKER


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x16", "requires TLS"),
        (b"SSH-2.0-OpenSSH\r\n", "speaks SSH"),
        (b"\x7f\xff\xff\xff", "does not speak Kafka"),
        (b"\x00\x00\x00\x04\x00\x00\x00\x63", "sent a wrong correlation id"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00", "invalid response to API_VERSIONS"),
        (b"", "closed the connection without an answer"),
        (b"\x00\x00", "closed the connection without an answer"),
    ],
)
async def test_connect_to_other_protocol_names_it(
    nursery: trio.Nursery, reply: bytes, words: str
) -> None:
    address = await serve_bytes(nursery, reply)
    with pytest.raises(BrokerUnreachable, match=words):
        await in_thread(lambda: KafkaClient(address))


async def test_connect_to_silent_port_times_out(nursery: trio.Nursery) -> None:
    async def silent(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await trio.sleep_forever()

    listeners = await nursery.start(trio.serve_tcp, silent, 0)
    address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    with pytest.raises(BrokerUnreachable, match="no answer to API_VERSIONS in time"):
        await in_thread(lambda: KafkaClient(address, timeout_s=0.05))


async def test_api_versions_unsupported_is_retried_with_version_0(fake_broker: Any) -> None:
    """The response has version 0 and contains only the error code."""
    original = fake_broker._reply

    def old(frame: bytes) -> bytes | None:
        if frame[2:4] == b"\x00\x03":
            return frame[4:8] + b"\x00\x23" + b"\x00\x00\x00\x00"
        reply: bytes | None = original(frame)
        return reply

    fake_broker._reply = old
    fake_broker.answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse()
    with await in_thread(lambda: KafkaClient(fake_broker.address)) as client:
        await in_thread(lambda: client.send(ListGroupsRequest(), ListGroupsResponse))


async def test_request_uses_newest_version_of_both_sides(fake_broker: Any) -> None:
    fake_broker.answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse()
    fake_broker.versions[ApiKey.LIST_GROUPS] = (0, 3)
    with await in_thread(lambda: KafkaClient(fake_broker.address)) as client:
        await in_thread(lambda: client.send(ListGroupsRequest(), ListGroupsResponse))
    assert fake_broker.requests[-1] == (3, ListGroupsRequest())


async def test_request_of_unsupported_api_raises(fake_broker: Any) -> None:
    with (
        await in_thread(lambda: KafkaClient(fake_broker.address)) as client,
        pytest.raises(ApiNotSupported, match="supports no version of LIST_GROUPS"),
    ):
        await in_thread(lambda: client.send(ListGroupsRequest(), ListGroupsResponse))


async def test_request_that_cannot_be_encoded_raises_invalid_argument(fake_broker: Any) -> None:
    fake_broker.answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse()
    request = ListGroupsRequest(states_filter=["\udcff"])
    with (
        await in_thread(lambda: KafkaClient(fake_broker.address)) as client,
        pytest.raises(
            InvalidArgument, match=r"cannot be encoded: ListGroupsRequest.*states_filter"
        ),
    ):
        await in_thread(lambda: client.send(request, ListGroupsResponse))


def test_length_prefix_is_not_a_foreign_protocol() -> None:
    assert foreign_protocol(b"\x00\x00\x01\x2c") is None


def require_authentication(
    fake_broker: Any, *lifetimes_ms: int, code: int = 0, text: str | None = None
) -> None:
    """Require authentication, with these session lifetimes or this error."""
    worth = iter(lifetimes_ms)
    fake_broker.answers |= {
        ApiKey.SASL_HANDSHAKE: lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"]),
        ApiKey.SASL_AUTHENTICATE: lambda _: SaslAuthenticateResponse(
            error_code=code, error_message=text, session_lifetime_ms=next(worth)
        ),
        ApiKey.LIST_GROUPS: lambda _: ListGroupsResponse(),
    }


ALICE = ClientSecurity(mechanism="PLAIN", start_exchange=lambda: plain("alice", "secret"))


def request_names(fake_broker: Any) -> list[str]:
    return [type(request).__name__.removesuffix("Request") for _, request in fake_broker.requests]


async def test_authentication_precedes_first_request(fake_broker: Any) -> None:
    require_authentication(fake_broker, 0)
    with await in_thread(lambda: KafkaClient(fake_broker.address, ALICE)) as client:
        for _ in range(2):
            await in_thread(lambda: client.send(ListGroupsRequest(), ListGroupsResponse))
    once = ["ApiVersions", "SaslHandshake", "SaslAuthenticate"]
    assert request_names(fake_broker) == [*once, "ListGroups", "ListGroups"]
    assert fake_broker.requests[2][1].auth_bytes == b"\0alice\0secret"


async def test_authentication_is_renewed_before_session_expires(
    fake_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    require_authentication(fake_broker, 1000, 0)
    connection = await in_thread(
        lambda: BrokerConnection(parse_bootstrap(fake_broker.address)[0], ALICE)
    )
    for now, proofs in ((1000.89, 1), (1000.91, 2), (9999.0, 2)):  # noqa: B007 (read by the clock)
        await in_thread(lambda: connection.send(ListGroupsRequest(), ListGroupsResponse))
        assert request_names(fake_broker).count("SaslAuthenticate") == proofs
    connection.close()


async def test_failed_authentication_reports_the_broker_s_message(fake_broker: Any) -> None:
    code = ErrorCode.SASL_AUTHENTICATION_FAILED
    require_authentication(fake_broker, 0, code=code, text="Invalid username or password")
    why = r":\d+ rejected authentication with PLAIN: SASL_AUTHENTICATION_FAILED: Invalid username"
    with pytest.raises(BrokerError, match=why):
        await in_thread(lambda: KafkaClient(fake_broker.address, ALICE))


async def test_unsupported_mechanism_lists_enabled_mechanisms(fake_broker: Any) -> None:
    require_authentication(fake_broker)
    fake_broker.answers[ApiKey.SASL_HANDSHAKE] = lambda _: SaslHandshakeResponse(
        error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["PLAIN", "OAUTHBEARER"]
    )
    with pytest.raises(BrokerError, match="SASL_MECHANISM: enabled mechanisms: PLAIN, OAUTHBEARER"):
        await in_thread(lambda: KafkaClient(fake_broker.address, ALICE))


async def test_unverified_server_receives_no_second_message(fake_broker: Any) -> None:
    require_authentication(fake_broker, 0)
    access = ClientSecurity(
        mechanism="SCRAM-SHA-256", start_exchange=lambda: scram("SCRAM-SHA-256", "a", "b", "n")
    )
    with pytest.raises(BrokerUnreachable, match="failed server authentication: its first message"):
        await in_thread(lambda: KafkaClient(fake_broker.address, access))
    assert request_names(fake_broker).count("SaslAuthenticate") == 1


async def test_missing_authentication_suggests_security_settings(fake_broker: Any) -> None:
    require_authentication(fake_broker)
    fake_broker.drop_once = [ApiKey.LIST_GROUPS, ApiKey.LIST_GROUPS]
    with (
        await in_thread(lambda: KafkaClient(fake_broker.address)) as client,
        pytest.raises(BrokerUnreachable, match=r"it may require authentication$") as caught,
    ):
        await in_thread(lambda: client.send(ListGroupsRequest(), ListGroupsResponse))
    assert caught.value.remedy is Remedy.CONFIGURE_SECURITY


async def test_tls_to_a_plaintext_port_reports_failed_handshake(nursery: trio.Nursery) -> None:
    address = await serve_bytes(nursery, b"HTTP/1.1 400 Bad Request\r\n\r\n")
    access = ClientSecurity(tls=ssl.create_default_context())
    with pytest.raises(BrokerUnreachable, match=r"no secure connection to .* of a TLS listener"):
        await in_thread(lambda: KafkaClient(address, access))

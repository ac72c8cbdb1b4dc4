from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

from minibroker.cli.client import Client, Connection, foreign_protocol, parse_bootstrap
from minibroker.cli.errors import CliError, Refused, Unreachable, UsageMistake
from minibroker.cli.proofs import plain, scram
from minibroker.cli.servers import Access
from minibroker.config import HostPort
from protocol.errors import ErrorCode
from protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from protocol.messages.sasl_handshake import SaslHandshakeResponse
from protocol.registry import ApiKey


async def in_thread(call: Callable[[], Any]) -> Any:
    with trio.fail_after(10):
        return await trio.to_thread.run_sync(call)


async def serve_bytes(nursery: trio.Nursery, reply: bytes) -> str:
    """A port that answers whatever it is asked with ``reply``, and then ends."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(reply)
        await stream.aclose()

    listeners = await nursery.start(trio.serve_tcp, answer, 0)
    return f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port at which nobody listens, nor can: it is held."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def test_nothing_listens(nobody: int) -> None:
    with pytest.raises(Unreachable, match=rf"nothing listens on 127\.0\.0\.1:{nobody}; start"):
        await in_thread(lambda: Client(f"127.0.0.1:{nobody}"))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x16", "speaks TLS"),
        (b"SSH-2.0-OpenSSH\r\n", "speaks SSH"),
        (b"\x7f\xff\xff\xff", "does not speak Kafka"),
        (b"\x00\x00\x00\x04\x00\x00\x00\x63", "answered another request"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00", "no API_VERSIONS"),
        (b"", "closed the connection without an answer"),
        (b"\x00\x00", "closed the connection without an answer"),
    ],
)
async def test_a_port_that_speaks_something_else(
    nursery: trio.Nursery, reply: bytes, words: str
) -> None:
    address = await serve_bytes(nursery, reply)
    with pytest.raises(Unreachable, match=words):
        await in_thread(lambda: Client(address))


async def test_a_port_that_says_nothing(nursery: trio.Nursery) -> None:
    async def silent(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await trio.sleep_forever()

    listeners = await nursery.start(trio.serve_tcp, silent, 0)
    address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    with pytest.raises(Unreachable, match="no answer to API_VERSIONS in time"):
        await in_thread(lambda: Client(address, timeout_s=0.05))


async def test_an_old_broker_refuses_the_question_and_is_asked_again(fake_broker: Any) -> None:
    """ApiVersions in an unknown version is answered in version 0, with the code and a range."""
    original = fake_broker._reply

    def old(frame: bytes) -> bytes | None:
        if frame[2:4] == b"\x00\x03":
            return frame[4:8] + b"\x00\x23" + b"\x00\x00\x00\x00"
        reply: bytes | None = original(frame)
        return reply

    fake_broker._reply = old
    fake_broker.answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse()
    with await in_thread(lambda: Client(fake_broker.address)) as client:
        await in_thread(lambda: client.ask(ListGroupsRequest(), ListGroupsResponse))


async def test_requests_go_in_the_newest_version_that_both_speak(fake_broker: Any) -> None:
    fake_broker.answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse()
    fake_broker.versions[ApiKey.LIST_GROUPS] = (0, 3)
    with await in_thread(lambda: Client(fake_broker.address)) as client:
        await in_thread(lambda: client.ask(ListGroupsRequest(), ListGroupsResponse))
    assert fake_broker.asked[-1] == (3, ListGroupsRequest())


async def test_what_a_broker_does_not_serve_is_said(fake_broker: Any) -> None:
    with (
        await in_thread(lambda: Client(fake_broker.address)) as client,
        pytest.raises(CliError, match="serves no version of LIST_GROUPS"),
    ):
        await in_thread(lambda: client.ask(ListGroupsRequest(), ListGroupsResponse))


async def test_an_argument_that_cannot_be_sent_is_not_the_brokers_fault(fake_broker: Any) -> None:
    fake_broker.answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse()
    request = ListGroupsRequest(states_filter=["\udcff"])
    with (
        await in_thread(lambda: Client(fake_broker.address)) as client,
        pytest.raises(UsageMistake, match=r"cannot be sent: ListGroupsRequest.*states_filter"),
    ):
        await in_thread(lambda: client.ask(request, ListGroupsResponse))


async def test_a_connection_that_broke_is_made_anew(fake_broker: Any) -> None:
    fake_broker.answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse()
    with await in_thread(lambda: Client(fake_broker.address)) as client:
        client._any.close()
        await in_thread(lambda: client.ask(ListGroupsRequest(), ListGroupsResponse))


async def test_what_may_be_asked_twice_survives_a_connection_that_is_closed(
    fake_broker: Any,
) -> None:
    fake_broker.answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse()
    with await in_thread(lambda: Client(fake_broker.address)) as client:
        fake_broker.hang_up_on = [ApiKey.LIST_GROUPS]
        await in_thread(lambda: client.ask(ListGroupsRequest(), ListGroupsResponse))
        fake_broker.hang_up_on = [ApiKey.LIST_GROUPS, ApiKey.LIST_GROUPS]
        with pytest.raises(
            Unreachable, match=r":\d+ closed the connection; if it wants to know who asks"
        ):
            await in_thread(lambda: client.ask(ListGroupsRequest(), ListGroupsResponse))


async def test_what_would_be_done_twice_is_not_asked_again(fake_broker: Any) -> None:
    fake_broker.answers[ApiKey.PRODUCE] = lambda _: ProduceResponse()
    fake_broker.hang_up_on = [ApiKey.PRODUCE]
    with await in_thread(lambda: Client(fake_broker.address)) as client:
        with pytest.raises(Unreachable, match="closed the connection"):
            await in_thread(lambda: client.ask(ProduceRequest(), ProduceResponse))
        assert [type(request) for _, request in fake_broker.asked].count(ProduceRequest) == 1


async def test_the_next_server_is_tried_when_one_is_down(fake_broker: Any, nobody: int) -> None:
    client = await in_thread(lambda: Client(f"127.0.0.1:{nobody},{fake_broker.address}"))
    with client:
        assert client._any.address == HostPort("127.0.0.1", fake_broker.port)


def metadata(broker: Any, code: int, *partition_codes: int) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=broker.port)],
        topics=[
            MetadataResponseTopic(
                error_code=code,
                name="cats",
                partitions=[
                    MetadataResponsePartition(partition_index=index, leader_id=1, error_code=item)
                    for index, item in reversed(list(enumerate(partition_codes)))
                ],
            )
        ],
    )


async def test_a_new_topic_is_waited_for_until_it_has_leaders(fake_broker: Any) -> None:
    replies = [
        metadata(fake_broker, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        metadata(fake_broker, 0, ErrorCode.LEADER_NOT_AVAILABLE, 0),
        metadata(fake_broker, 0, 0, 0),
    ]
    fake_broker.answers[ApiKey.METADATA] = lambda _: replies.pop(0)
    with await in_thread(lambda: Client(fake_broker.address)) as client:
        topic = await in_thread(lambda: client.topic("cats", create=True))
    assert [item.partition_index for item in topic.partitions] == [0, 1]
    assert not replies


async def test_an_unknown_topic_is_not_waited_for(fake_broker: Any) -> None:
    unknown = metadata(fake_broker, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    fake_broker.answers[ApiKey.METADATA] = lambda _: unknown
    with (
        await in_thread(lambda: Client(fake_broker.address)) as client,
        pytest.raises(Refused, match=r"topic cats: UNKNOWN_TOPIC_OR_PARTITION.*topics create"),
    ):
        await in_thread(lambda: client.topic("cats"))


@pytest.mark.parametrize("newest", [2, 6])
async def test_a_coordinator_is_found_in_either_form(fake_broker: Any, newest: int) -> None:
    codes = [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE]

    def answer(_: object) -> FindCoordinatorResponse:
        found = Coordinator(
            key="g", node_id=3, host="127.0.0.1", port=fake_broker.port, error_code=codes.pop(0)
        )
        return FindCoordinatorResponse(
            error_code=found.error_code,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
            coordinators=[found],
        )

    fake_broker.answers[ApiKey.FIND_COORDINATOR] = answer
    fake_broker.versions[ApiKey.FIND_COORDINATOR] = (0, newest)
    with await in_thread(lambda: Client(fake_broker.address)) as client:
        assert await in_thread(lambda: client.coordinator("g")) == 3


def test_bootstrap_servers_are_read_or_refused_with_an_example() -> None:
    assert parse_bootstrap("a:1, b:2") == [HostPort("a", 1), HostPort("b", 2)]
    with pytest.raises(UsageMistake, match=r"--bootstrap-server localhost: .*127\.0\.0\.1:9092"):
        parse_bootstrap("localhost")


def test_kafka_s_own_lengths_are_not_taken_for_another_protocol() -> None:
    assert foreign_protocol(b"\x00\x00\x01\x2c") is None


def proving(fake_broker: Any, *lifetimes_ms: int, code: int = 0, text: str | None = None) -> None:
    """Have a broker ask who we are, and take any proof so often."""
    worth = iter(lifetimes_ms)
    fake_broker.answers |= {
        ApiKey.SASL_HANDSHAKE: lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"]),
        ApiKey.SASL_AUTHENTICATE: lambda _: SaslAuthenticateResponse(
            error_code=code, error_message=text, session_lifetime_ms=next(worth)
        ),
        ApiKey.LIST_GROUPS: lambda _: ListGroupsResponse(),
    }


ALICE = Access(mechanism="PLAIN", prove=lambda: plain("alice", "secret"))


def asked(fake_broker: Any) -> list[str]:
    return [type(request).__name__.removesuffix("Request") for _, request in fake_broker.asked]


async def test_a_proof_comes_before_anything_else(fake_broker: Any) -> None:
    proving(fake_broker, 0)
    with await in_thread(lambda: Client(fake_broker.address, ALICE)) as client:
        for _ in range(2):
            await in_thread(lambda: client.ask(ListGroupsRequest(), ListGroupsResponse))
    once = ["ApiVersions", "SaslHandshake", "SaslAuthenticate"]
    assert asked(fake_broker) == [*once, "ListGroups", "ListGroups"]
    assert fake_broker.asked[2][1].auth_bytes == b"\0alice\0secret"


async def test_a_proof_is_renewed_before_it_is_worth_nothing(
    fake_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    proving(fake_broker, 1000, 0)
    connection = await in_thread(lambda: Connection(parse_bootstrap(fake_broker.address)[0], ALICE))
    for now, proofs in ((1000.89, 1), (1000.91, 2), (9999.0, 2)):  # noqa: B007 (read by the clock)
        await in_thread(lambda: connection.ask(ListGroupsRequest(), ListGroupsResponse))
        assert asked(fake_broker).count("SaslAuthenticate") == proofs
    connection.close()


async def test_a_proof_that_is_none_is_told_in_the_broker_s_words(fake_broker: Any) -> None:
    code = ErrorCode.SASL_AUTHENTICATION_FAILED
    proving(fake_broker, 0, code=code, text="Invalid username or password")
    why = r":\d+ does not let us in with PLAIN: SASL_AUTHENTICATION_FAILED: Invalid username"
    with pytest.raises(Refused, match=why):
        await in_thread(lambda: Client(fake_broker.address, ALICE))


async def test_a_mechanism_that_is_not_taken_is_told_with_those_that_are(fake_broker: Any) -> None:
    proving(fake_broker)
    fake_broker.answers[ApiKey.SASL_HANDSHAKE] = lambda _: SaslHandshakeResponse(
        error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["PLAIN", "OAUTHBEARER"]
    )
    with pytest.raises(Refused, match="SASL_MECHANISM: it takes PLAIN, OAUTHBEARER"):
        await in_thread(lambda: Client(fake_broker.address, ALICE))


async def test_an_impostor_is_told_nothing_more(fake_broker: Any) -> None:
    proving(fake_broker, 0)
    access = Access(mechanism="SCRAM-SHA-256", prove=lambda: scram("SCRAM-SHA-256", "a", "b", "n"))
    with pytest.raises(Unreachable, match="is not to be trusted: its first answer is no message"):
        await in_thread(lambda: Client(fake_broker.address, access))
    assert asked(fake_broker).count("SaslAuthenticate") == 1


async def test_who_has_nothing_to_show_is_told_how(fake_broker: Any) -> None:
    proving(fake_broker)
    fake_broker.hang_up_on = [ApiKey.LIST_GROUPS, ApiKey.LIST_GROUPS]
    why = r"if it wants to know who asks, say how to get in with --command-config FILE"
    with (
        await in_thread(lambda: Client(fake_broker.address)) as client,
        pytest.raises(Unreachable, match=why),
    ):
        await in_thread(lambda: client.ask(ListGroupsRequest(), ListGroupsResponse))


async def test_no_tls_where_it_is_wanted_is_told(nursery: trio.Nursery) -> None:
    address = await serve_bytes(nursery, b"HTTP/1.1 400 Bad Request\r\n\r\n")
    access = Access(tls=ssl.create_default_context())
    with pytest.raises(Unreachable, match=r"no secure connection to .* one for TLS\?"):
        await in_thread(lambda: Client(address, access))

"""Requests and responses pass through one connection, and rules act on those that they match."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.security.handshakes import Pem, client_context
from minibroker.broker.settings.setting import HostPort, parse_host_port
from minibroker.lab.proxy import exchange
from minibroker.lab.proxy.connection import (
    JOINED_BYTES_MAX,
    REQUEST_BYTES_MAX,
    FrameReader,
    UpstreamLost,
    check_broker,
    connect,
    send_frame,
    with_length,
)
from minibroker.lab.proxy.exchange import UnexpectedFrame
from minibroker.runtime.stream import MEMORY_STREAM_BYTES_MAX, memory_stream_pair
from minibroker.testing import MiniBroker
from minibroker_protocol.compiler import encode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from minibroker_protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from minibroker_protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.broker.network.certificates import authority, keystore, truststore
from tests.lab.proxy.conversation import LOCAL, Conversation, conversation

BEAT = HeartbeatRequest(group_id="g", member_id="m")
TOPIC_ID = b"\1" * 16
UNKNOWN_API = b"\x13\x88\x00\x01\x00\x00\x00\x05\x00\x01x and more"


async def test_frames_pass_byte_by_byte() -> None:
    async with conversation() as at:
        await at.send_frame(UNKNOWN_API)
        assert await at.taken_frame() == UNKNOWN_API
        await at.answer_frame(b"\0\0\0\5 anything")
        assert await at.receive_frame() == b"\0\0\0\5 anything"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with conversation() as at:
        for number in range(5):
            await at.send(BEAT, 4, number)
        for number in range(5):
            header, _ = await at.taken()
            assert header.correlation_id == number
        for number in range(5):
            await at.answer(HeartbeatResponse(error_code=number), 4, number)
        for number in range(5):
            assert (await at.receive(BEAT, 4)).error_code == number


async def test_requests_above_the_limit_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "IN_FLIGHT_MAX", 2)
    async with conversation() as at:
        for number in range(3):
            await at.send(BEAT, 4, number)
        await at.taken()
        await at.taken()
        await wait_all_tasks_blocked()
        assert at.broker.unread() == 0
        await at.answer(HeartbeatResponse(), 4, 0)
        assert (await at.taken())[0].correlation_id == 2


async def test_addresses_are_replaced_and_names_learned() -> None:
    async with conversation() as at:
        request = MetadataRequest(topics=None)
        await at.send(request, 12)
        await at.taken()
        broker = MetadataResponseBroker(node_id=1, host="kafka", port=9092)
        topic = MetadataResponseTopic(name="t", topic_id=TOPIC_ID)
        await at.answer(MetadataResponse(brokers=[broker], topics=[topic]), 12)
        (found,) = (await at.receive(request, 12)).brokers
        assert (found.host, found.port) == (LOCAL, 9093)
        assert at.topic_names.get(TOPIC_ID) == "t"


async def test_broker_that_cannot_be_listened_for_ends_the_connection() -> None:
    async with conversation() as at:
        at.listen_failure = "all ports are taken"
        await at.send(MetadataRequest(topics=None), 12)
        await at.taken()
        broker = MetadataResponseBroker(node_id=1, host="kafka", port=9092)
        await at.answer(MetadataResponse(brokers=[broker]), 12)
        assert await at.receive_frame() is None
        assert at.connection.end == ("internal_error", "all ports are taken")


async def test_offered_versions_are_limited_to_those_that_can_be_read() -> None:
    async with conversation() as at:
        await at.send(ApiVersionsRequest(), 3)
        await at.taken()
        offered = ApiVersion(api_key=3, min_version=0, max_version=99)
        await at.answer(ApiVersionsResponse(api_keys=[offered]), 3)
        (found,) = (await at.receive(ApiVersionsRequest(), 3)).api_keys
        assert found.max_version == 13


async def test_api_versions_that_is_too_new_is_answered_by_the_proxy() -> None:
    async with conversation() as at:
        await at.send_frame(b"\0\x12\0\x63\0\0\0\7\0\1c\0")
        answered = await at.receive(ApiVersionsRequest(), 0)
        assert answered.error_code == ErrorCode.UNSUPPORTED_VERSION
        await at.send(BEAT, 4)
        assert (await at.taken())[0].api_key == 12


async def test_version_that_was_not_offered_ends_the_connection() -> None:
    async with conversation() as at:
        await at.send_frame(b"\0\x03\0\x63\0\0\0\7\0\1c\0")
        assert await at.receive_frame() is None
        assert "METADATA version 99 is newer" in at.connection.end.text
        assert await at.taken_frame() is None


async def test_old_sasl_tokens_pass() -> None:
    async with conversation() as at:
        await at.send(SaslHandshakeRequest(mechanism="PLAIN"), 0)
        await at.taken()
        await at.answer(SaslHandshakeResponse(mechanisms=["PLAIN"]), 0)
        await at.receive_frame()
        await at.send_frame(b"\0alice\0secret")
        assert await at.taken_frame() == b"\0alice\0secret"
        await at.answer_frame(b"")
        assert await at.receive_frame() == b""
        await at.send(BEAT, 4)
        assert (await at.taken())[0].api_key == 12


async def test_lost_broker_disconnects_the_client_after_its_responses() -> None:
    async with conversation() as at:
        await at.send(BEAT, 4, 1)
        await at.send(BEAT, 4, 2)
        await at.taken()
        await at.answer(HeartbeatResponse(), 4, 1)
        at.broker.close()
        assert await at.receive_frame() is not None
        assert await at.receive_frame() is None
        assert at.connection.end == ("peer_lost", "broker kafka:9092 closed the connection")


async def test_unreachable_broker_disconnects_the_client() -> None:
    async with conversation(reachable=False) as at:
        assert await at.receive_frame() is None
        assert "can't be reached" in at.connection.end.text


async def test_client_that_leaves_disconnects_the_broker() -> None:
    async with conversation() as at:
        await at.send(ProduceRequest(acks=0), 9)
        at.client.close()
        assert await at.taken_frame() is not None
        assert await at.taken_frame() is None
        await at.ended.wait()
        assert not at.connection.end.is_problem


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ((REQUEST_BYTES_MAX + 1).to_bytes(4, "big"), "above the limit"),
        (b"\xff\xff\xff\xff", "is negative"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"\0\0\0\3abc", "a request of 3 bytes"),
    ],
)
async def test_bytes_that_are_no_requests_end_the_connection(sent: bytes, reason: str) -> None:
    async with conversation() as at:
        await at.client.send_all(sent)
        assert await at.receive_frame() is None
        assert reason in at.connection.end.text


async def test_response_to_nothing_ends_the_connection() -> None:
    async with conversation() as at:
        await at.answer_frame(b"\0\0\0\1")
        assert await at.receive_frame() is None
        assert at.connection.end == ("bad_request", "a response without a request")


# Rules --------------------------------------------------------------------------------------------


async def test_error_before_is_answered_without_the_broker() -> None:
    async with conversation() as at:
        await at.add("error", api="Heartbeat", group="g", error="NOT_COORDINATOR")
        await at.send(BEAT, 4)
        assert (await at.receive(BEAT, 4)).error_code == ErrorCode.NOT_COORDINATOR
        assert at.broker.unread() == 0


async def test_error_after_replaces_the_broker_s_response() -> None:
    async with conversation() as at:
        await at.add("error", api="Heartbeat", error="16", at="after")
        await at.send(BEAT, 4)
        assert (await at.taken())[1] == BEAT
        await at.answer(HeartbeatResponse(), 4)
        assert (await at.receive(BEAT, 4)).error_code == 16


async def test_unmatched_request_is_not_read_again() -> None:
    async with conversation() as at:
        await at.add("error", group="other", error="16")
        frame = b"\0\x0c\0\4\0\0\0\7\0\1c\0\x02g\0\0\0\0\x02m\0\0 and more"
        await at.send_frame(frame)
        assert await at.taken_frame() == frame
        await at.send_frame(b"\0\x0c\0\4\0\0\0\x08\0\1c damaged")
        assert (await at.taken_frame() or b"").endswith(b"damaged")
        await at.send_frame(b"\0\x0c\0\x63\0\0\0\7\0\1c\0 newer")
        assert (await at.taken_frame() or b"").endswith(b"newer")


async def test_matched_request_waits_for_those_before_it_and_later_ones_for_it() -> None:
    async with conversation() as at:
        rule = await at.add("hold", api="Heartbeat", correlation_id=2)
        for number in (1, 2, 3):
            await at.send(BEAT, 4, number)
        assert (await at.taken())[0].correlation_id == 1
        await wait_all_tasks_blocked()
        assert at.faults.register.view(rule).matches == 0
        await at.answer(HeartbeatResponse(error_code=1), 4, 1)
        assert (await at.receive(BEAT, 4)).error_code == 1
        await wait_all_tasks_blocked()
        assert (at.faults.register.view(rule).held, at.broker.unread()) == (1, 0)
        assert at.faults.register.release(rule) == 1
        for number in (2, 3):
            assert (await at.taken())[0].correlation_id == number
            await at.answer(HeartbeatResponse(error_code=number), 4, number)
            assert (await at.receive(BEAT, 4)).error_code == number


async def test_disconnect_in_the_middle_closes_both_sides() -> None:
    async with conversation() as at:
        await at.add("disconnect", at="middle", bytes=7)
        await at.send(BEAT, 4)
        await at.taken()
        await at.answer(HeartbeatResponse(), 4)
        received = bytearray(100)
        assert await at.client.receive_exactly(memoryview(received)) == 7
        assert await at.taken_frame() is None
        assert at.connection.end == ("fault_rule", "rule 1")


async def test_silent_connection_stays_open_when_the_broker_leaves() -> None:
    async with conversation() as at:
        await at.add("never_answer", first=1)
        await at.send(BEAT, 4)
        await at.send(BEAT, 4)
        await wait_all_tasks_blocked()
        at.broker.close()
        await wait_all_tasks_blocked()
        assert not at.ended.is_set()
        at.client.close()
        await at.ended.wait()


async def test_throttle_mutes_the_connection(autojump_clock: MockClock) -> None:
    async with conversation() as at:
        await at.add("throttle", throttle_ms=5000, first=1)
        began = autojump_clock.current_time()
        await at.send(BEAT, 4, 1)
        await at.send(BEAT, 4, 2)
        await at.taken()
        await at.answer(HeartbeatResponse(), 4, 1)
        assert (await at.receive(BEAT, 4)).throttle_time_ms == 5000
        await at.taken()
        assert autojump_clock.current_time() - began >= 5


async def test_request_without_a_response_is_passed_on_by_a_rule() -> None:
    async with conversation() as at:
        rule = await at.add("observe", api="Produce")
        await at.send(ProduceRequest(acks=0), 9, 1)
        await at.send(BEAT, 4, 2)
        assert (await at.taken())[0].correlation_id == 1
        assert (await at.taken())[0].correlation_id == 2
        assert at.faults.register.view(rule).hits == 1


async def test_error_for_a_request_without_a_response_disconnects() -> None:
    async with conversation() as at:
        await at.add("error", api="Produce", error="NOT_LEADER_OR_FOLLOWER", at="after")
        await at.send(ProduceRequest(acks=0), 9)
        assert await at.receive_frame() is None
        assert "acks=0" in at.connection.end.text


async def test_connection_is_closed_by_client_id() -> None:
    async with conversation() as at:
        await at.send(BEAT, 4)
        await at.taken()
        rule = await at.add("close", client_id="cli*")
        assert await at.receive_frame() is None
        assert at.connection.end.text == f"rule {rule}"


def fetch(session_epoch: int) -> FetchRequest:
    partition = FetchPartition(partition=0)
    return FetchRequest(
        session_epoch=session_epoch,
        session_id=7 if session_epoch > 0 else 0,
        topics=[FetchTopic(topic_id=TOPIC_ID, partitions=[partition])],
    )


async def test_topic_of_a_fetch_by_id_is_selected_by_its_name() -> None:
    async with conversation() as at:
        at.topic_names.learn(
            MetadataResponse(topics=[MetadataResponseTopic(name="t", topic_id=TOPIC_ID)])
        )
        await at.add("error", api="Fetch", topic="t", error="NOT_LEADER_OR_FOLLOWER")
        await at.send(fetch(0), 16)
        (topic,) = (await at.receive(fetch(0), 16)).responses
        assert topic.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_fetch_session_is_ended_so_that_rules_see_all_partitions() -> None:
    async with conversation() as at:
        await at.add("error", api="Fetch", topic="other", error="6")
        await at.send(fetch(3), 16, 1)
        answered = await at.receive(fetch(3), 16)
        assert answered.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        await at.send(fetch(0), 16, 2)
        _, passed = await at.taken()
        assert (passed.session_epoch, passed.topics) == (-1, fetch(0).topics)
        await at.answer(FetchResponse(session_id=0), 16, 2)
        assert (await at.receive(fetch(0), 16)).session_id == 0
        await at.send(fetch(-1), 16, 3)
        assert (await at.taken())[1] == fetch(-1)


# Anything -----------------------------------------------------------------------------------------


@given(
    pieces=st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=60)), max_size=12),
    has_rules=st.booleans(),
)
async def test_any_bytes_from_both_sides_pass_or_end_the_connection(
    pieces: list[tuple[bool, bytes]], has_rules: bool
) -> None:
    async with conversation() as at:
        if has_rules:
            await at.add("observe")
            await at.add("error", group="other", error="16")
        await exchange_any(at, pieces)


async def exchange_any(at: Conversation, pieces: list[tuple[bool, bytes]]) -> None:
    start = encode(BEAT, 4)
    for is_client, data in pieces:
        stream = at.client if is_client else at.broker
        if at.ended.is_set():
            break
        frame = data if len(data) % 2 else b"\0\x0c\0\4" + data + start
        stream.send_now(len(frame).to_bytes(4, "big") + frame if data[0] % 2 else frame)
        await wait_all_tasks_blocked()
    at.client.close()
    at.broker.close()
    await at.ended.wait()


@pytest.mark.parametrize("size", [0, 1, JOINED_BYTES_MAX, JOINED_BYTES_MAX + 1, 10**6])
async def test_frames_of_any_size_arrive(size: int) -> None:
    near, far = memory_stream_pair()
    reader = FrameReader(far, 10**6)
    frames = [bytes([number]) * size for number in range(3)]
    received = []
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            for frame in frames:
                await send_frame(near, frame)
            near.close()

        nursery.start_soon(send)
        while (frame := await reader.next_frame()) is not None:
            received.append(frame)
    assert received == frames


async def test_frame_above_the_limit_is_unexpected_before_it_arrives() -> None:
    near, far = memory_stream_pair()
    await near.send_all(with_length(bytes(11))[:4])
    with pytest.raises(UnexpectedFrame, match="above the limit of 10"):
        await FrameReader(far, 10).next_frame()


async def test_tls_is_recognized_in_the_first_bytes_only() -> None:
    near, far = memory_stream_pair()
    await near.send_all(with_length(b"x"))
    reader = FrameReader(far, 2**30)
    assert await reader.next_frame() == b"x"
    await near.send_all(b"\x16\x03\x01\0 more")
    near.close()
    assert await reader.next_frame() is None
    near, far = memory_stream_pair()
    await near.send_all(b"\x16\x03\x01\0")
    with pytest.raises(UnexpectedFrame, match="TLS"):
        await FrameReader(far, 2**30).next_frame()


async def test_stream_is_read_only_for_a_frame() -> None:
    near, far = memory_stream_pair()
    FrameReader(far, 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.send_all, bytes(MEMORY_STREAM_BYTES_MAX + 1))
        await wait_all_tasks_blocked()
        assert far.unread() == MEMORY_STREAM_BYTES_MAX
        nursery.cancel_scope.cancel()


async def test_discarded_bytes_are_read_to_the_end() -> None:
    near, far = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(FrameReader(far, 100).discard_bytes)
        await near.send_all(bytes(3 * MEMORY_STREAM_BYTES_MAX))
        near.close()


LOOPBACK = "127.0.0.1"
PASSWORD = "ssl.key.password"


@asynccontextmanager
async def echo(tls: ssl.SSLContext | None = None) -> AsyncIterator[HostPort]:
    """A server that sends back what it receives."""

    async def serve(stream: trio.SocketStream) -> None:
        both: Any = stream if tls is None else trio.SSLStream(stream, tls, server_side=True)
        try:
            while data := await both.receive_some():
                await both.send_all(data)
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(both)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host=LOOPBACK))
        yield HostPort(*listener.socket.getsockname()[:2])
        nursery.cancel_scope.cancel()


@pytest.fixture
def server(tmp_path: Path) -> ssl.SSLContext:
    """The context of a server for 127.0.0.1 and localhost."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keystore(tmp_path))
    return context


def trusting(folder: Path, *, checks_host: bool = True) -> ssl.SSLContext:
    return client_context(Pem(checks_host, truststore=str(truststore(folder))), PASSWORD)


async def reason_of(broker: HostPort, context: ssl.SSLContext) -> str:
    with pytest.raises(UpstreamLost) as raised:
        await connect(broker, context)
    return str(raised.value)


async def test_connection_with_tls_passes_bytes(server: ssl.SSLContext, tmp_path: Path) -> None:
    async with echo(server) as broker:
        stream = await connect(broker, trusting(tmp_path))
        assert stream.peer == broker
        for data in (b"one", b"x" * 300_000):
            received = memoryview(bytearray(len(data)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, data)
                assert await stream.receive_exactly(received) == len(data)
            assert received == data
        stream.close()


async def test_certificate_must_be_trusted(server: ssl.SSLContext) -> None:
    async with echo(server) as broker:
        text = await reason_of(broker, client_context(Pem(checks_host=True), PASSWORD))
    assert text.startswith(f"broker {broker} can't be reached: its certificate is not trusted")
    assert "ssl.truststore.location" in text


async def test_certificate_must_be_that_of_the_host(tmp_path: Path) -> None:
    async with echo(context_for("other.example")) as broker:
        text = await reason_of(broker, trusting(tmp_path))
        assert "Use a host name in --upstream that its certificate contains" in text
        (await connect(broker, trusting(tmp_path, checks_host=False))).close()


def context_for(host: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(host).configure_cert(context)
    return context


async def test_listener_without_tls_is_named(tmp_path: Path) -> None:
    async with echo() as broker:
        text = await reason_of(broker, trusting(tmp_path))
    assert "check that the port in --upstream is that of a TLS listener" in text


async def test_broker_that_disconnects_in_the_handshake_is_named(tmp_path: Path) -> None:
    async def close(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, close, 0, host=LOOPBACK))
        broker = HostPort(*listener.socket.getsockname()[:2])
        text = await reason_of(broker, trusting(tmp_path))
        nursery.cancel_scope.cancel()
    assert "the TLS handshake failed (the broker disconnected)" in text


async def test_handshake_has_a_limit_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.lab.proxy.connection.CONNECT_S", 0.05)

    async def wait(_: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, wait, 0, host=LOOPBACK))
        broker = HostPort(*listener.socket.getsockname()[:2])
        text = await reason_of(broker, trusting(tmp_path))
        nursery.cancel_scope.cancel()
    assert text.endswith("no connection within 0.05 s")


async def test_broker_answers_before_the_proxy_is_ready(minibroker: MiniBroker) -> None:
    await check_broker(parse_host_port(minibroker.bootstrap_servers), None)


async def test_listener_that_requires_tls_is_named(server: ssl.SSLContext) -> None:
    async with echo(server) as broker:
        with pytest.raises(UpstreamLost, match="requires TLS, name a file by --command-config"):
            await check_broker(broker, None)


async def test_listener_that_is_no_broker_is_named(tmp_path: Path, server: ssl.SSLContext) -> None:
    async with echo(server) as broker:
        with pytest.raises(UpstreamLost, match=r"it does not answer requests$"):
            await check_broker(broker, trusting(tmp_path))


async def test_listener_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.lab.proxy.connection.ANSWER_S", 0.05)
    with (
        socket.create_server((LOOPBACK, 0)) as silent,
        pytest.raises(UpstreamLost, match="it does not answer requests"),
    ):
        await check_broker(HostPort(*silent.getsockname()[:2]), None)

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from minibroker.broker.settings import HostPort
from minibroker.client.errors import BrokerError, BrokerUnreachable, Remedy
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from minibroker_protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from minibroker_protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.registry import ApiKey
from tests.client.fake_broker import in_thread


async def test_closed_connection_is_reconnected(fake_broker: Any) -> None:
    fake_broker.answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse()
    with await in_thread(lambda: KafkaClient(fake_broker.address)) as client:
        client._bootstrap_connection.close()
        await in_thread(lambda: client.send(ListGroupsRequest(), ListGroupsResponse))


async def test_idempotent_request_is_retried_once_on_dropped_connection(
    fake_broker: Any,
) -> None:
    fake_broker.answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse()
    with await in_thread(lambda: KafkaClient(fake_broker.address)) as client:
        fake_broker.drop_once = [ApiKey.LIST_GROUPS]
        await in_thread(lambda: client.send(ListGroupsRequest(), ListGroupsResponse))
        fake_broker.drop_once = [ApiKey.LIST_GROUPS, ApiKey.LIST_GROUPS]
        with pytest.raises(
            BrokerUnreachable, match=r":\d+ closed the connection; it may require authentication"
        ):
            await in_thread(lambda: client.send(ListGroupsRequest(), ListGroupsResponse))


async def test_produce_request_is_not_retried_on_dropped_connection(fake_broker: Any) -> None:
    fake_broker.answers[ApiKey.PRODUCE] = lambda _: ProduceResponse()
    fake_broker.drop_once = [ApiKey.PRODUCE]
    with await in_thread(lambda: KafkaClient(fake_broker.address)) as client:
        with pytest.raises(BrokerUnreachable, match="closed the connection"):
            await in_thread(lambda: client.send(ProduceRequest(), ProduceResponse))
        assert [type(request) for _, request in fake_broker.requests].count(ProduceRequest) == 1


async def test_bootstrap_skips_unreachable_server(fake_broker: Any, unused_port: int) -> None:
    client = await in_thread(lambda: KafkaClient(f"127.0.0.1:{unused_port},{fake_broker.address}"))
    with client:
        assert client._bootstrap_connection.address == HostPort("127.0.0.1", fake_broker.port)


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


async def test_topic_when_created_waits_for_leaders(fake_broker: Any) -> None:
    replies = [
        metadata(fake_broker, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        metadata(fake_broker, 0, ErrorCode.LEADER_NOT_AVAILABLE, 0),
        metadata(fake_broker, 0, 0, 0),
    ]
    fake_broker.answers[ApiKey.METADATA] = lambda _: replies.pop(0)
    with await in_thread(lambda: KafkaClient(fake_broker.address)) as client:
        topic = await in_thread(lambda: client.topic("cats", create=True))
    assert [item.partition_index for item in topic.partitions] == [0, 1]
    assert not replies


async def test_unreachable_advertised_address_is_attributed_to_the_broker(
    fake_broker: Any, unused_port: int
) -> None:
    elsewhere = MetadataResponseBroker(node_id=7, host="127.0.0.1", port=unused_port)
    fake_broker.answers[ApiKey.METADATA] = lambda _: MetadataResponse(brokers=[elsewhere])
    fake_broker.answers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse()

    def ask() -> None:
        with KafkaClient(fake_broker.address) as client:
            client.metadata()
            client.send(ListGroupsRequest(), ListGroupsResponse, broker_id=7)

    with pytest.raises(BrokerUnreachable) as raised:
        await in_thread(ask)
    assert raised.value.remedy is Remedy.CORRECT_ADVERTISED_ADDRESS
    assert str(raised.value) == (
        f"nothing listens on 127.0.0.1:{unused_port}, the address that {fake_broker.address} "
        "advertises for broker 7"
    )


async def test_advertised_address_of_another_program_is_attributed_to_the_broker(
    fake_broker: Any, nursery: trio.Nursery
) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    serve = partial(trio.serve_tcp, answer, 0, host="127.0.0.1")
    (listener,) = await nursery.start(serve)
    port = listener.socket.getsockname()[1]
    elsewhere = MetadataResponseBroker(node_id=7, host="127.0.0.1", port=port)
    fake_broker.answers[ApiKey.METADATA] = lambda _: MetadataResponse(brokers=[elsewhere])

    def ask() -> None:
        with KafkaClient(fake_broker.address) as client:
            client.metadata()
            client.send(ListGroupsRequest(), ListGroupsResponse, broker_id=7)

    with pytest.raises(BrokerUnreachable, match="speaks HTTP") as raised:
        await in_thread(ask)
    assert raised.value.remedy is Remedy.CORRECT_ADVERTISED_ADDRESS
    expected = f"{fake_broker.address} advertises 127.0.0.1:{port} for broker 7"
    assert str(raised.value).endswith(expected)


async def test_unknown_topic_raises_at_once(fake_broker: Any) -> None:
    unknown = metadata(fake_broker, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    fake_broker.answers[ApiKey.METADATA] = lambda _: unknown
    with (
        await in_thread(lambda: KafkaClient(fake_broker.address)) as client,
        pytest.raises(BrokerError, match=r"topic cats: UNKNOWN_TOPIC_OR_PARTITION"),
    ):
        await in_thread(lambda: client.topic("cats"))


async def test_invalid_topic_name_is_explained(fake_broker: Any) -> None:
    invalid = metadata(fake_broker, ErrorCode.INVALID_TOPIC_EXCEPTION)
    fake_broker.answers[ApiKey.METADATA] = lambda _: invalid
    reason = "INVALID_TOPIC_EXCEPTION: it has characters other than ASCII letters and digits"
    with (
        await in_thread(lambda: KafkaClient(fake_broker.address)) as client,
        pytest.raises(BrokerError, match=f"topic bad topic: {reason}"),
    ):
        await in_thread(lambda: client.topic("bad topic"))


@pytest.mark.parametrize("newest", [2, 6])
async def test_coordinator_is_found_in_old_and_new_versions(fake_broker: Any, newest: int) -> None:
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
    with await in_thread(lambda: KafkaClient(fake_broker.address)) as client:
        assert await in_thread(lambda: client.coordinator("g")) == 3

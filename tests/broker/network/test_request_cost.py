"""The cost of a request: each nanosecond of work is recorded once."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.network.quota_stage import (
    SEARCHED_MAX,
    RequestCost,
    count_records,
    first_error,
)
from minibroker_protocol.compiler import encode, locating_decoder
from minibroker_protocol.messages.api_versions import ApiVersionsResponse
from minibroker_protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch

NS = st.integers(min_value=0, max_value=10**12)


class Connection:
    """The work of a connection, as far as a cost needs it."""

    def __init__(self, accounted_ns: int) -> None:
        self.accounted_ns = accounted_ns


@given(accounted=NS, reading=NS, executing=NS, io=NS, sending=NS)
def test_work_before_and_after_the_check_adds_up_to_all_work(
    accounted: int, reading: int, executing: int, io: int, sending: int
) -> None:
    client = cast("ClientConnection", Connection(accounted))
    received = accounted + reading
    cost = RequestCost(client, 10, 0, received)
    cost.io_ns = io
    cost.executed(received + executing)
    cost.sent(received + executing + sending, 7)
    assert cost.worked_ns == executing + io
    assert cost.late_ns == reading + sending
    assert cost.network_ns == executing + sending


@given(owners=NS, io=NS)
def test_queue_time_is_the_wait_for_owners_without_their_work(owners: int, io: int) -> None:
    cost = RequestCost(cast("ClientConnection", Connection(0)), 10, 0, 0)
    cost.owners_ns, cost.io_ns = owners, io
    assert cost.queue_ns == max(owners - io, 0)


def test_time_of_a_failed_request_ends_when_the_connection_is_closed() -> None:
    cost = RequestCost(cast("ClientConnection", Connection(0)), 10, 100, 0)
    cost.failed(175)
    assert cost.total_ns == 75
    assert cost.network_ns == 0


def test_records_are_counted_from_batch_headers() -> None:
    batch = build_batch([Record(value=b"v")] * 7)
    data = [
        PartitionProduceData(index=0, records=batch),
        PartitionProduceData(index=1, records=b"too short"),
        PartitionProduceData(index=2, records=None),
        PartitionProduceData(index=3, records=batch),
        PartitionProduceData(index=4, records=batch[:57] + b"\xff\xff\xff\xff"),
    ]
    request = ProduceRequest(
        acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )
    body = memoryview(encode(request, 9))
    located, _ = locating_decoder(ProduceRequest, 9)(body, 0)
    assert count_records(located, body) == 14


def test_first_error_is_found() -> None:
    assert first_error(None) == 0
    assert first_error(ApiVersionsResponse(error_code=35)) == 35
    partitions = [PartitionData(error_code=code) for code in (0, 0, 6, 3)]
    topics = [FetchableTopicResponse(), FetchableTopicResponse(partitions=partitions)]
    assert first_error(FetchResponse(responses=topics)) == 6
    assert first_error(FetchResponse(error_code=9, responses=topics)) == 9
    assert first_error(FetchResponse()) == 0


def test_only_first_items_of_long_list_are_inspected() -> None:
    fine, batch = [PartitionData()] * (SEARCHED_MAX - 1), build_batch([Record(value=b"v")])
    for before, code in ((fine, 6), ([*fine, PartitionData()], 0)):
        topic = FetchableTopicResponse(partitions=[*before, PartitionData(error_code=6)])
        assert first_error(FetchResponse(responses=[topic])) == code
    data = [PartitionProduceData(records=batch)] * (SEARCHED_MAX + 1)
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=data)])
    body = memoryview(encode(request, 9))
    located, _ = locating_decoder(ProduceRequest, 9)(body, 0)
    assert count_records(located, body) == SEARCHED_MAX

"""The activity event of a request: its client, records and errors."""

from __future__ import annotations

from typing import Any, cast

import pytest

from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.network.activity_events import (
    SEARCHED_MAX,
    activity_client,
    count_records,
    first_error,
    request_event,
)
from minibroker.broker.network.activity_sender import NAME_CHARACTERS_MAX
from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.network.request_cost import QuotaChecks, RequestCost
from minibroker.broker.quotas.controller_mutation import Mutated
from minibroker.broker.quotas.entity import Bound, Tags
from minibroker.broker.quotas.manager import QuotaCheck
from minibroker.broker.quotas.types import QuotaType
from minibroker.broker.security.principal import Principal
from minibroker_protocol.compiler import encode, locating_decoder
from minibroker_protocol.headers import RequestHeader
from minibroker_protocol.messages.api_versions import ApiVersionsResponse
from minibroker_protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from minibroker_protocol.messages.heartbeat import HeartbeatResponse
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey


def client(host: str = "::ffff:10.0.0.1") -> ClientConnection:
    accepted = AcceptedConnection("PLAINTEXT", ("10.0.0.9", 9092), (host, 5000), 7)
    found = ClientConnection(accepted, cast("Any", None), 0.0)
    found.caller = found.caller._replace(principal=Principal("User", "alice"))
    return found


def cost_of(response: Any, checks: QuotaChecks, mutated: Mutated | None) -> RequestCost:
    made = RequestCost(client(), 100, 0, 0)
    made.header = RequestHeader(ApiKey.PRODUCE, 9, 1, "etl")
    made.now, made.mutated = 12.3456, mutated
    made.error, made.response_bytes = first_error(response), 40
    made.owners_ns, made.network_ns, made.io_ns, made.total_ns = 24, 12, 13, 14
    made.worked_ns, made.later_time = 15, (16, 12_347, 4)
    made.checks = checks
    return made


def test_activity_client_is_reused_for_consecutive_requests() -> None:
    one = client()
    first = activity_client(one, "etl")
    assert first == ("PLAINTEXT", 7, "10.0.0.1", "alice", "etl")
    assert activity_client(one, "e" + "tl") is first
    assert activity_client(one, "other")[4] == "other"
    one.caller = one.caller._replace(principal=Principal("User", "bob"))
    assert activity_client(one, "other")[3] == "bob"


def test_long_names_are_cut() -> None:
    assert len(activity_client(client(), "c" * 9999)[4]) == NAME_CHARACTERS_MAX


def test_event_contains_the_quota_checks() -> None:
    quota_checks = QuotaChecks()
    quota_checks.throttle_ms = 500
    tags, bound = Tags("alice", ""), Bound(10.0, None)
    quota_checks.note(QuotaCheck(QuotaType.PRODUCE, tags, 15.0, bound, 500, 12_345, 1))
    quota_checks.note(QuotaCheck(QuotaType.REQUEST, tags, 1.0, None, 0, 12_346, 2))
    mutation = QuotaCheck(QuotaType.CONTROLLER_MUTATION, tags, -1.0, bound, 9, 8, 3)
    mutated, failed = Mutated(5, 2, True, mutation, 9), HeartbeatResponse(error_code=3)
    cost = cost_of(failed, quota_checks, mutated)
    cost.records = 3
    event = request_event(99, cost)
    assert event == (
        *(99, 12_345, ("PLAINTEXT", 7, "10.0.0.1", "alice", "etl"), 0, 9, 100, 40, 3),
        *((5, 2, True), False, 11, 12, 13, 14, 15, (16, 12_347, 4)),
        (
            ("alice", "", 15.0, 10.0, 500, 12_345),
            None,
            ("alice", "", 1.0, None, 0, 12_346),
            ("alice", "", -1.0, 10.0, 9, 8),
        ),
        (1, 2, None),
        *(500, 3),
    )


@pytest.mark.parametrize(
    ("looks_at", "changes", "places"),
    [
        ({}, None, None),
        ({QuotaType.REQUEST: 5}, None, (5, None, None)),
        ({QuotaType.FETCH: 5, QuotaType.REQUEST: 5}, None, (5, None, 9)),
        ({QuotaType.PRODUCE: 5, QuotaType.REQUEST: 4}, None, (5, 4, None)),
        ({QuotaType.REQUEST: 5}, 3, (3, 5, None)),
    ],
)
def test_equal_ordinals_are_recorded_once(
    looks_at: dict[QuotaType, int], changes: int | None, places: object
) -> None:
    tags, quota_checks = Tags("alice", ""), QuotaChecks()
    for kind, ordinal in looks_at.items():
        quota_checks.note(QuotaCheck(kind, tags, 1.0, None, 0, 1, ordinal))
    if QuotaType.FETCH in looks_at:
        quota_checks.taken_back = 9
    mutated = None
    if changes is not None:
        look = QuotaCheck(QuotaType.CONTROLLER_MUTATION, tags, 1.0, None, 0, 1, changes)
        mutated = Mutated(1, 0, True, look, 0)
    event = request_event(99, cost_of(None, quota_checks, mutated))
    assert event[-3] == places


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

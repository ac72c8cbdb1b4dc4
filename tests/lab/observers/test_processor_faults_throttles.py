"""Rules that throttle, together with quotas, the journal and old personas."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.testing import ControlError, MiniBroker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from tests.broker.network.raw_client import RawClient

HEARTBEAT = HeartbeatRequest(group_id="g", member_id="m")
THROTTLE_MS = 5000
QUOTA = AlterClientQuotasRequest(
    entries=[
        AlterClientQuotasRequestEntryData(
            entity=[EntityData(entity_type="client-id", entity_name="raw")],
            ops=[OpData(key="request_percentage", value=0.001)],
        )
    ]
)


def test_throttled_response_of_kafka_0_11_is_late() -> None:
    with MiniBroker(persona="kafka-0.11") as broker, broker.faults as faults:
        broker.freeze()
        rule = faults.add("throttle", api="Heartbeat", throttle_ms=THROTTLE_MS, first=1)
        with RawClient(broker.bootstrap_servers) as client:
            client.send(HEARTBEAT, 1)
            rule.wait()
            with RawClient(broker.bootstrap_servers, "witness") as witness:
                witness.ask(MetadataRequest(topics=[]), 4)
            assert not client.is_readable()
            broker.advance(THROTTLE_MS)
            assert client.receive(HEARTBEAT, 1).throttle_time_ms == THROTTLE_MS
            assert client.ask(HEARTBEAT, 1).throttle_time_ms == 0  # It is not muted.


def test_rule_for_a_version_that_the_persona_lacks_is_rejected() -> None:
    with (
        MiniBroker(persona="kafka-0.11") as broker,
        pytest.raises(ControlError, match="HEARTBEAT is served in versions 0 to 1"),
    ):
        broker.faults.add("observe", api="Heartbeat", version_min=4)


def throttle_times(journal: Any, api: str) -> list[int | None]:
    """The throttle times of the journal's responses."""
    return [each["throttle_time_ms"] for each in journal.entries(kind="response", api=api)]


def test_journal_has_throttle_times_that_were_sent() -> None:
    with MiniBroker() as broker, broker.journal as journal, broker.faults as faults:
        broker.freeze()
        rule = faults.add("throttle", api="Heartbeat", throttle_ms=THROTTLE_MS)
        with RawClient(broker.bootstrap_servers) as client:
            client.ask(HEARTBEAT, 0)  # It is muted, which this version does not say.
            client.send(HEARTBEAT, 1)
            broker.advance(THROTTLE_MS)
            assert client.receive(HEARTBEAT, 1).throttle_time_ms == THROTTLE_MS
        assert throttle_times(journal, "Heartbeat") == [None, THROTTLE_MS]
        assert rule.hits == 2


def test_quota_leaves_what_a_rule_has_put_into_a_response() -> None:
    with MiniBroker() as broker, broker.faults as faults, broker.journal as journal:
        broker.create_topic("t")
        with RawClient(broker.bootstrap_servers, "admin") as admin:
            admin.ask(QUOTA, 1)
        broker.freeze()
        topics = [FetchTopic(topic="t", partitions=[FetchPartition(partition=0)])]
        request = FetchRequest(topics=topics, max_wait_ms=0)
        with RawClient(broker.bootstrap_servers) as client:
            faults.add("error", api="Fetch", error="OFFSET_OUT_OF_RANGE", topic="t")
            first = client.ask(request, 4)
            assert first.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert first.throttle_time_ms > 0
            faults.add("throttle", api="Fetch", throttle_ms=3, mute=False)
            client.send(request, 4)
            broker.advance(first.throttle_time_ms)
            assert client.receive(request, 4).throttle_time_ms == 3
        assert throttle_times(journal, "Fetch") == [first.throttle_time_ms, 3]

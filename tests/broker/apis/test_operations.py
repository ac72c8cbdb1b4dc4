"""Bit fields of allowed operations, as Kafka without an authorizer answers."""

from __future__ import annotations

from minibroker.broker.apis.operations import CLUSTER_OPERATIONS, GROUP_OPERATIONS, TOPIC_OPERATIONS


def test_operation_bits_match_kafka_operation_codes() -> None:
    def bits(field: int) -> list[int]:
        return [number for number in range(32) if field >> number & 1]

    assert bits(TOPIC_OPERATIONS) == [3, 4, 5, 6, 7, 8, 10, 11]
    assert bits(GROUP_OPERATIONS) == [3, 6, 8, 10, 11]
    assert bits(CLUSTER_OPERATIONS) == [5, 7, 8, 9, 10, 11, 12]

"""The mutation quota is asked once for each topic, and not for a validation."""

from __future__ import annotations

from minibroker.broker.metadata.mutations import (
    PARTITION_BYTES,
    QUOTA_EXCEEDED,
    RESERVED_BYTES,
    MutationLimits,
    allow_all,
)
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker_protocol.errors import ErrorCode


def test_mutation_quota_is_charged_once_per_topic() -> None:
    asked: list[int] = []

    def take(partitions: int) -> bool:
        asked.append(partitions)
        return len(asked) == 1

    allowance = MutationLimits(take)
    assert [allowance.check("a", "plan", 3) for _ in range(3)] == ["plan"] * 3
    assert [allowance.check("b", "plan", 4) for _ in range(2)] == [QUOTA_EXCEEDED] * 2
    assert asked == [3, 4]
    assert MutationLimits(take, counts=False).check("c", "plan", 5) == "plan"
    assert asked == [3, 4]
    assert allow_all(10**9)


def test_partitions_exceeding_free_disk_space_are_rejected() -> None:
    free = RESERVED_BYTES + 3 * PARTITION_BYTES
    allowance = MutationLimits(allow_all, free_bytes=lambda: free)
    assert allowance.check("a", "plan", 3) == "plan"
    refused = allowance.check("b", "plan", 4)
    assert isinstance(refused, ChangeRejected)
    assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert f"{free} are free" in refused.text


def test_unknown_free_disk_space_accepts_partitions() -> None:
    assert MutationLimits(allow_all, free_bytes=lambda: -1).check("a", "plan", 10**6) == "plan"


def test_topics_of_one_request_need_room_together() -> None:
    free = RESERVED_BYTES + 3 * PARTITION_BYTES
    allowance = MutationLimits(allow_all, free_bytes=lambda: free)
    assert allowance.check("a", "plan", 2) == "plan"
    assert isinstance(allowance.check("b", "plan", 2), ChangeRejected)
    assert allowance.check("a", "plan", 2) == "plan"  # tried again
    assert allowance.check("c", "plan", 1) == "plan"

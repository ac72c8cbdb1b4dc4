"""Ownership is a pure function of names; Java's hash decides as it does in Kafka."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.metadata.placement import (
    TRANSACTION_STATE_TOPIC,
    group_owner,
    java_string_hash,
    offsets_partition,
    partition_owner,
    transaction_owner,
    transaction_partition,
)


def java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) % 2**32
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("\N{GRINNING FACE}", 1772899),
        ("a" * 300, java_hash("a" * 300)),
    ],
)
def test_hash_is_that_of_java(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected
    assert java_string_hash(text) == expected  # kept or computed again


def test_lowest_hash_does_not_become_a_negative_partition() -> None:
    assert offsets_partition("polygenelubricants", 50) == 0


@given(st.text(), st.integers(1, 64))
def test_every_group_has_an_owner(group: str, workers: int) -> None:
    assert 0 <= group_owner(group, 50, workers) < workers


def test_partitions_of_topic_are_assigned_round_robin() -> None:
    owners = [partition_owner("orders", index, 3) for index in range(6)]
    assert sorted(owners[:3]) == [0, 1, 2]
    assert owners[:3] == owners[3:]


def test_transactional_id_is_coordinated_by_owner_of_its_partition() -> None:
    index = transaction_partition("x", 50)
    assert index == ord("x") % 50
    owner = partition_owner(TRANSACTION_STATE_TOPIC, index, 3)
    assert transaction_owner("x", 50, 3) == owner

"""Topics are decoded from any consumer's metadata; other bytes are ignored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.groups.subscription import (
    assigned_partitions,
    encode_assignment,
    subscribed_topics,
)
from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    TopicPartition,
)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscription_of_every_version_is_decoded(version: int) -> None:
    subscription = ConsumerProtocolSubscription(
        topics=["a", "b"],
        user_data=b"sticky",
        owned_partitions=[TopicPartition(topic="a", partitions=[1])],
    )
    metadata = version.to_bytes(2, "big") + encode(subscription, version)
    assert subscribed_topics(metadata) == frozenset("ab")


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\0\0", b"\xff\xff\0\0\0\0\0\0\0\0", b"range"])
def test_unknown_metadata_gives_no_topics(metadata: bytes) -> None:
    assert subscribed_topics(metadata) is None


@given(st.binary(max_size=64))
def test_arbitrary_bytes_decode_as_topics_or_none(metadata: bytes) -> None:
    topics = subscribed_topics(metadata)
    assert topics is None or all(isinstance(topic, str) for topic in topics)


@given(st.dictionaries(st.text(max_size=5), st.lists(st.integers(0, 2**31 - 1)), max_size=4))
def test_encoded_assignment_is_read_back(topics: dict[str, list[int]]) -> None:
    found = assigned_partitions(encode_assignment(topics))
    assert dict(found) == {name: tuple(partitions) for name, partitions in topics.items()}

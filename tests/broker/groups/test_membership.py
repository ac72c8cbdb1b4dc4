"""Membership: members, instance ids, waiting joins and votes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.groups.membership import (
    ClassicMember,
    Membership,
    assigned_partitions,
    encode_assignment,
    restore_member,
    subscribed_topics,
)
from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    TopicPartition,
)


def member(member_id: str, *protocols: str, instance: str | None = None) -> ClassicMember:
    return ClassicMember(
        member_id=member_id,
        group_instance_id=instance,
        client_id="c",
        client_host="/h",
        session_timeout_ms=1,
        rebalance_timeout_ms=int(member_id) * 1000,
        protocols=tuple((name, name.encode()) for name in protocols or ("range",)),
    )


def membership(*members: ClassicMember) -> Membership:
    made = Membership()
    for each in members:
        made.add(each)
    return made


def test_first_member_leads_and_oldest_succeeds() -> None:
    three = membership(member("1"), member("2"), member("3"))
    leaders = [three.leader]
    for leaving in ("1", "3", "2"):
        three.remove(leaving)
        leaders.append(three.leader)
    assert leaders == ["1", "2", "2", None]
    assert len(three) == 0


def test_instance_id_maps_to_one_member() -> None:
    one = membership(member("1", instance="s"))
    with pytest.raises(ValueError, match="'s' is already a member"):
        one.add(member("2", instance="s"))
    one.pending_sync.add("1")
    one.rename(one["1"], "9")
    assert one.static_member_id("s") == "9"
    assert one.leader == "9"
    assert one.pending_sync == {"9"}
    one.remove("9")
    assert one.static_member_id("s") is None


def test_waiting_joins_are_counted() -> None:
    two = membership(member("1"), member("2"))
    assert two.park_join(two["1"], 10) is None
    assert two.park_join(two["1"], 11) == 10
    assert (two.awaiting_join, two.all_joined) == (1, False)

    two.park_join(two["2"], 12)
    assert [two.all_joined] == [True]
    two.pending["3"] = 1.0
    assert [two.all_joined] == [False]
    two.remove("3")
    assert two.release_join(two["1"]) == 11
    assert two.release_join(two["1"]) is None
    two.remove("2")
    assert two.awaiting_join == 0


def test_leader_that_has_not_rejoined_is_replaced() -> None:
    two = membership(member("1"), member("2"))
    assert not two.elect_joined_leader()
    two.park_join(two["2"], 1)
    assert two.elect_joined_leader()
    assert two.leader == "2"


@pytest.mark.parametrize(
    ("votes", "chosen"),
    [
        ([("a", "b"), ("b", "a"), ("b", "a")], "b"),
        ([("a", "b"), ("b", "a")], "a"),
        ([("x", "a", "b"), ("b", "a")], "a"),
        ([("x", "a", "b"), ("b", "a"), ("b", "a")], "b"),
    ],
)
def test_select_protocol_counts_votes_and_oldest_breaks_ties(
    votes: list[tuple[str, ...]], chosen: str
) -> None:
    voters = [member(str(number), *names) for number, names in enumerate(votes)]
    assert membership(*voters).select_protocol() == chosen


def test_supported_protocols_follow_member_changes() -> None:
    two = membership(member("1", "a", "b"), member("2", "b"))
    assert two.supported_by_all(["b"])
    assert not two.supported_by_all(["a"])
    two.update(two["2"], replace(member("2", "a"), rebalance_timeout_ms=9000))
    assert two.supported_by_all(["x", "a"])
    assert two.rebalance_timeout_s() == 9.0
    two.remove("2")
    assert two.supported_by_all(["b"])


def test_duplicate_protocol_counts_once() -> None:
    two = membership(member("1", "a", "a", "b"), member("2", "b"))
    assert not two.supported_by_all(["a"])
    assert two.select_protocol() == "b"
    two.remove("2")
    assert two.select_protocol() == "a"


def test_subscribed_topics_are_unknown_if_one_subscription_is() -> None:
    one = member("1")
    one.protocols = (("range", b"\0\0" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"),)
    assert membership(one).subscribed_topics("range") == frozenset("t")
    assert membership(one, member("2")).subscribed_topics("range") is None


def member_with(**other: object) -> ClassicMember:
    values: dict[str, object] = {
        "member_id": "m",
        "group_instance_id": None,
        "client_id": "c",
        "client_host": "/h",
        "session_timeout_ms": 1,
        "rebalance_timeout_ms": 2,
        "protocols": (("sticky", b"s"), ("range", b"r")),
    }
    return ClassicMember(**(values | other))  # type: ignore[arg-type]


def test_vote_returns_most_preferred_candidate() -> None:
    assert member_with().vote({"range", "sticky"}) == "sticky"
    assert member_with().vote({"range", "other"}) == "range"


def test_metadata_of_protocol_is_returned() -> None:
    assert member_with().metadata("range") == b"r"
    with pytest.raises(KeyError):
        member_with().metadata("other")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, True),
        ({"join_waiter": 1}, False),
        ({"sync_waiter": 1}, False),
        ({"join_waiter": 1, "is_new": True}, True),
    ],
)
def test_member_may_expire_only_if_it_can_send_heartbeats(
    state: dict[str, object], expected: bool
) -> None:
    assert member_with(**state).may_expire is expected


def test_record_contains_only_selected_protocol() -> None:
    stored = member_with(group_instance_id="i").stored("range", b"mine")
    again = restore_member(stored, "range")
    assert again.protocols == (("range", b"r"),)
    assert again.stored("range", b"mine") == stored
    assert again.is_static


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

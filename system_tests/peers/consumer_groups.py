"""Consumer groups of KIP-848: heartbeats, fences, offsets, descriptions and classic members.

Each heartbeat has its answer at once; sleeps let assignment intervals pass on both brokers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from minibroker_protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from minibroker_protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from system_tests.peers.conversation import SendRequest
from system_tests.peers.groups import commit, heartbeat, join, leave, sync
from system_tests.peers.topics import create, topic

ASSIGNMENT_INTERVAL_S: Final = 1.1
"""Kafka's default of ``group.consumer.assignment.interval.ms`` and some more."""

SUBSCRIPTION: Final = b"\0\0" + encode(ConsumerProtocolSubscription(topics=["cg"]), 0)


def beat(group: str, member: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, **fields
    )


def first(group: str, member: str, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    joining: dict[str, Any] = {
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["cg"],
        "topic_partitions": [],
    }
    return beat(group, member, 0, **{**joining, **fields})


def owned(topic_id: bytes, *partitions: int) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id=topic_id, partitions=list(partitions))]


def fetch(group: str, member: str | None, epoch: int) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name="cg", partition_indexes=[0])]
    wanted = OffsetFetchRequestGroup(
        group_id=group, member_id=member, member_epoch=epoch, topics=topics
    )
    return OffsetFetchRequest(groups=[wanted])


def classic_join(group: str, member: str = "") -> JoinGroupRequest:
    request = join(group, member)
    request.protocols = [JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)]
    return request


def life_of_a_group(ask: SendRequest) -> None:
    """Two members share four partitions; the first is fenced in every way on the way."""
    ask("made", create(topic("cg", 4)), 7)
    joined = ask("joined", first("cg-1", "a"), 1)
    [assigned] = joined.assignment.topic_partitions
    topic_id, epoch = assigned.topic_id, joined.member_epoch
    for number in range(-4, epoch + 3):
        if number not in (-1, 0):
            ask(f"epoch {number}", beat("cg-1", "a", number), 1)
    ask("other member", beat("cg-1", "x", epoch), 1)
    ask("owned", beat("cg-1", "a", epoch, topic_partitions=owned(topic_id, 0, 1, 2, 3)), 1)
    ask("described alone", ConsumerGroupDescribeRequest(group_ids=["cg-1"]), 1)
    time.sleep(ASSIGNMENT_INTERVAL_S)
    second = ask("second joined", first("cg-1", "b"), 1)
    revoking = ask("revokes", beat("cg-1", "a", epoch), 1)
    [kept] = revoking.assignment.topic_partitions
    ask("described while revoking", ConsumerGroupDescribeRequest(group_ids=["cg-1"]), 1)
    ask("not revoked", beat("cg-1", "a", epoch), 1)
    ask("second waits", beat("cg-1", "b", second.member_epoch), 1)
    rest = owned(topic_id, *kept.partitions)
    moved = ask("revoked", beat("cg-1", "a", epoch, topic_partitions=rest), 1)
    ask("answer lost", beat("cg-1", "a", epoch, topic_partitions=rest), 1)
    everything = owned(topic_id, 0, 1, 2, 3)
    ask("owns too much", beat("cg-1", "a", epoch, topic_partitions=everything), 1)
    ask("second gets them", beat("cg-1", "b", second.member_epoch), 1)
    ask("described", ConsumerGroupDescribeRequest(group_ids=["cg-1", "cg-none", ""]), 0)
    ask("in use", DeleteGroupsRequest(groups_names=["cg-1"]), 3)
    ask("classic description", DescribeGroupsRequest(groups=["cg-1"]), 6)
    _offsets(ask, moved.member_epoch)
    ask("left", beat("cg-1", "b", -1), 1)
    ask("left again", beat("cg-1", "b", -1), 1)
    ask("last left", beat("cg-1", "a", -1), 1)
    ask("described empty", ConsumerGroupDescribeRequest(group_ids=["cg-1"]), 1)
    ask("deleted", DeleteGroupsRequest(groups_names=["cg-1"]), 3)
    ask("beats of a deleted group", beat("cg-1", "a", 5), 1)
    ask("leaves a deleted group", beat("cg-1", "a", -1), 1)


def _offsets(ask: SendRequest, epoch: int) -> None:
    for member, number, version in product(("a", "x", ""), range(-1, epoch + 2), (8, 9)):
        options: dict[str, Any] = {"member_id": member, "generation_id_or_member_epoch": number}
        about = f"{member!r} in {number}, {version}"
        ask(f"committed by {about}", commit("cg-1", "cg", 3, **options), version)
    for reader, number in product((None, "a", "x"), (-1, epoch - 1, epoch, epoch + 1)):
        ask(f"fetched by {reader!r} in {number}", fetch("cg-1", reader, number), 9)


def malformed(ask: SendRequest) -> None:
    """Each rule of validation, alone and with others."""
    valid: dict[str, Any] = {"group": "cg-2", "member": "m"}
    for number, fields in enumerate(_malformed_fields()):
        given = {**valid, **fields}
        group, member, epoch = given.pop("group"), given.pop("member"), given.pop("epoch", 0)
        for version in (0, 1):
            request = beat(group, member, epoch, **given)
            if version == 0 and request.subscribed_topic_regex is not None:
                continue
            ask(f"malformed {number}, {version}", request, version)


def _malformed_fields() -> Iterator[dict[str, Any]]:
    names: dict[str, Any] = {"subscribed_topic_names": ["cg"]}
    joins: dict[str, Any] = {**names, "rebalance_timeout_ms": 1000, "topic_partitions": []}
    for epoch in (-4, -3, -2, -1, 0, 1):
        for given in ({}, names, joins, {"instance_id": "i"}, {"server_assignor": "none"}):
            yield {"epoch": epoch, **given}
        for blank in ("instance_id", "rack_id", "group"):
            yield {"epoch": epoch, blank: ""}
            yield {"epoch": epoch, **joins, blank: " "}
    for missing in joins:
        yield {name: value for name, value in joins.items() if name != missing}
    yield {**joins, "topic_partitions": owned(bytes(16), 0)}
    yield {**joins, "server_assignor": ""}
    yield {**joins, "server_assignor": "RANGE"}
    yield {**joins, "subscribed_topic_names": None, "subscribed_topic_regex": "("}


def static_members(ask: SendRequest) -> None:
    """A static member leaves for a while and for ever, and is replaced and fenced."""
    group = "cg-3"
    joined = ask("static joined", first(group, "a", instance_id="s"), 1)
    epoch = joined.member_epoch
    ask("unreleased", first(group, "b", instance_id="s"), 1)
    ask("rejoined", first(group, "a", instance_id="s"), 1)
    ask("fenced", beat(group, "b", epoch, instance_id="s"), 1)
    ask("unknown instance", beat(group, "b", epoch, instance_id="other"), 1)
    ask("without its instance", beat(group, "a", epoch), 1)
    ask("another's leave", beat(group, "b", -2, instance_id="s"), 1)
    ask("away", beat(group, "a", -2, instance_id="s"), 1)
    ask("described away", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    back = ask("back", first(group, "b", instance_id="s"), 1)
    ask("former id", beat(group, "a", epoch, instance_id="s"), 1)
    ask("alive", beat(group, "b", back.member_epoch, instance_id="s"), 1)
    ask("left for ever", beat(group, "b", -1, instance_id="s"), 1)
    ask("described left", ConsumerGroupDescribeRequest(group_ids=[group]), 1)


def with_classic_members(ask: SendRequest) -> None:
    """Groups change their type: with a member of each kind, and when they are empty."""
    group = "cg-4"
    ask("joined first", first(group, "a"), 1)
    time.sleep(ASSIGNMENT_INTERVAL_S)
    classic = ask("classic asks", classic_join(group), 9)
    member = classic.member_id
    joined = ask("classic joined", classic_join(group, member), 9)
    generation = joined.generation_id
    ask("classic synchronized", sync(group, member, generation), 5)
    ask("classic alive", heartbeat(group, member, generation), 4)
    ask("old generation", heartbeat(group, member, generation - 1), 4)
    ask("other kind", heartbeat(group, "a", 2), 4)
    ask("mixed", ConsumerGroupDescribeRequest(group_ids=[group]), 0)
    ask("unknown leaves", leave(group, ("x", None)), 5)
    ask("classic left", leave(group, (member, None)), 5)
    ask("last left", beat(group, "a", -1), 1)
    ask("empty", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    again = ask("classic in the empty group", join(group), 9)
    ask("joined again", join(group, again.member_id), 9)
    ask("is classic", beat(group, "a", 1), 1)
    ask("not described", ConsumerGroupDescribeRequest(group_ids=[group]), 1)


CONVERSATIONS: Final = (life_of_a_group, malformed, static_members, with_classic_members)

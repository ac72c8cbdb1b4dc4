"""Rights for streams groups: READ and DESCRIBE of the group, DESCRIBE of the topology's topics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.broker.apis.authorization import streams_checks
from minibroker.broker.apis.base import Denied
from minibroker.broker.metadata.image import Image
from minibroker.broker.security.acl import OPERATIONS_NOT_ASKED, Operation, Resource
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import streams_group_describe as described
from minibroker_protocol.messages import streams_group_heartbeat as heartbeat
from minibroker_protocol.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from minibroker_protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest

Right = tuple[Operation, Resource, str]
READ_GROUP: Right = (Operation.READ, Resource.GROUP, "g")
DESCRIBE_GROUP: Right = (Operation.DESCRIBE, Resource.GROUP, "g")
TOPICS = ("t", "sink", "log", "between")
DESCRIBE_TOPICS = [(Operation.DESCRIBE, Resource.TOPIC, name) for name in TOPICS]


def context(*rights: Right) -> Any:
    return SimpleNamespace(
        settings=Settings.from_sources(),
        image=Image(),
        allows=lambda *right, **_: right in rights,
    )


def beat(source: str = "t") -> StreamsGroupHeartbeatRequest:
    subtopology = heartbeat.Subtopology(
        subtopology_id="0",
        source_topics=[source],
        repartition_sink_topics=["sink"],
        state_changelog_topics=[heartbeat.TopicInfo(name="log")],
        repartition_source_topics=[heartbeat.TopicInfo(name="between")],
    )
    topology = heartbeat.Topology(epoch=0, subtopologies=[subtopology])
    return StreamsGroupHeartbeatRequest(group_id="g", member_id="m", topology=topology)


@pytest.mark.parametrize(
    ("rights", "error"),
    [
        ([], ErrorCode.GROUP_AUTHORIZATION_FAILED),
        ([READ_GROUP], ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ([READ_GROUP, *DESCRIBE_TOPICS[:3]], ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ([READ_GROUP, *DESCRIBE_TOPICS], None),
    ],
)
def test_heartbeat_requires_the_group_and_all_topics(
    rights: list[Right], error: ErrorCode | None
) -> None:
    checked = streams_checks.streams_group_heartbeat(context(*rights), beat())
    assert (None if checked is None else checked.response.error_code) == error


def test_impossible_topology_is_left_to_the_api() -> None:
    assert streams_checks.streams_group_heartbeat(context(READ_GROUP), beat("a b")) is None


def describe(*rights: Right) -> list[described.DescribedGroup]:
    request = StreamsGroupDescribeRequest(group_ids=["g", "h"])
    finish = streams_checks.streams_group_describe(context(*rights), request)
    assert finish is not None
    assert not isinstance(finish, Denied)
    subtopology = described.Subtopology(
        subtopology_id="0",
        source_topics=["t"],
        repartition_sink_topics=["sink"],
        state_changelog_topics=[described.TopicInfo(name="log")],
        repartition_source_topics=[described.TopicInfo(name="between")],
    )
    groups = [
        described.DescribedGroup(
            group_id=group_id,
            group_state="Stable",
            topology=described.Topology(epoch=0, subtopologies=[subtopology]),
            authorized_operations=OPERATIONS_NOT_ASKED,
        )
        for group_id in request.group_ids
    ]
    response: StreamsGroupDescribeResponse = finish(StreamsGroupDescribeResponse(groups=groups))
    return response.groups


def test_description_requires_the_group_and_all_topics() -> None:
    group_denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert [each.error_code for each in describe()] == [group_denied, group_denied]
    hidden, other = describe(DESCRIBE_GROUP, *DESCRIBE_TOPICS[1:])
    assert (hidden.error_code, hidden.topology, hidden.group_state) == (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        None,
        "",
    )
    assert other.error_code == group_denied
    shown, _ = describe(DESCRIBE_GROUP, *DESCRIBE_TOPICS)
    assert (shown.error_code, shown.group_state) == (0, "Stable")

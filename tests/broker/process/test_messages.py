"""What roles ask each other is plain data."""

from __future__ import annotations

import pickle

import pytest

from minibroker.broker.metadata.image import Image
from minibroker.broker.process import messages


@pytest.mark.parametrize(
    "message",
    [
        messages.RegisterRole("worker", 1, 2),
        messages.RoleRegistered(Image(cluster_id="c")),
        messages.RoleRegistered(Image(), (messages.ClockAdvanced(),)),
        messages.ApiPart(0, (1, b"x")),
        messages.ApiReply({"a": 1}, 17),
        messages.ClockAdvanced(),
        messages.MetricsRequest(),
        messages.DetailsRequest(),
        messages.LogsRequest("t"),
        messages.ActionRequest("rebalance", group="g"),
        messages.ActionReply(affected=1),
        messages.LogView(0, 1, 1, 70),
        messages.GroupsRequest(),
        messages.ProducerIdsRequest(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_message_arrives_unchanged(message: object) -> None:
    arrived = pickle.loads(pickle.dumps(message, 5))
    assert arrived == message
    assert type(arrived) is type(message)


def test_asking_for_groups_means_all_unless_one_is_named() -> None:
    assert messages.GroupsRequest().group_id is None

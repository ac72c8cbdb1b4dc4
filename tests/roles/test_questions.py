"""What roles ask each other is plain data."""

from __future__ import annotations

import pickle

import pytest

from minibroker.cluster.image import Image
from minibroker.roles import questions


@pytest.mark.parametrize(
    "message",
    [
        questions.Greeting("worker", 1, 2),
        questions.Welcome(Image(cluster_id="c")),
        questions.ApiPart(0, (1, b"x")),
        questions.ApiReply({"a": 1}, 17),
        questions.ClockTurned(),
        questions.MetricsWanted(),
        questions.DetailsWanted(),
        questions.LogsWanted("t"),
        questions.LogView(0, 1, 1, 70),
        questions.GroupsWanted(),
        questions.ProducerIdsWanted(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_it_arrives_as_it_was_sent(message: object) -> None:
    arrived = pickle.loads(pickle.dumps(message, 5))
    assert arrived == message
    assert type(arrived) is type(message)


def test_asking_for_groups_means_all_unless_one_is_named() -> None:
    assert questions.GroupsWanted().group_id is None

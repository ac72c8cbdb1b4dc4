"""What roles ask each other is plain data."""

from __future__ import annotations

import pickle

import pytest

from minibroker.broker.metadata.image import Image
from minibroker.broker.process import messages
from minibroker.lab.control.action_shapes import BrokerAction
from minibroker.lab.control.fault_shapes import FaultHold, FaultRule
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.rules import ActiveRule

RULE = ActiveRule("1", FaultRule("error", error="NOT_COORDINATOR"))


@pytest.mark.parametrize(
    "message",
    [
        messages.RegisterRole("worker", 1, 2),
        messages.RoleRegistered(Image(cluster_id="c")),
        messages.RoleRegistered(Image(), messages.FaultRules(1, (RULE,), ("0",))),
        messages.RoleRegistered(Image(), records_journal=True),
        messages.JournalSwitch(is_on=True),
        messages.JournalRequest(7),
        messages.KillProcess(),
        messages.FaultMatched((Candidate("1", (0, 2)), Candidate("2", None))),
        messages.FaultHeld("1", 3, FaultHold("worker-0", group="g")),
        messages.FaultAct("1"),
        messages.ApiPart(0, (1, b"x")),
        messages.ApiReply({"a": 1}, 17),
        messages.ClockAdvanced(),
        messages.MetricsRequest(),
        messages.DetailsRequest(),
        messages.LogsRequest("t"),
        messages.ActionRequest(BrokerAction("rebalance", group="g")),
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

"""What the parts of the laboratory ask each other is plain data."""

from __future__ import annotations

import pickle

import pytest

from minibroker.broker.metadata.image import Image
from minibroker.broker.process.messages import RoleRegistered
from minibroker.lab.faults.actions import Error
from minibroker.lab.faults.fault_rule import ActiveRule, FaultHold, FaultRule
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.observers import messages

RULE = ActiveRule("1", FaultRule(Error(error="NOT_COORDINATOR")))


@pytest.mark.parametrize(
    "message",
    [
        RoleRegistered(Image(), (messages.FaultRules(1, (RULE,), ("0",)),)),
        RoleRegistered(Image(), (messages.JournalSwitch(is_on=True),)),
        messages.JournalSwitch(is_on=True),
        messages.JournalRequest(7),
        messages.KillProcess(),
        messages.FaultMatched((Candidate("1", (0, 2)), Candidate("2", None))),
        messages.FaultHeld("1", 3, FaultHold("worker-0", group="g")),
        messages.FaultAct("1"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_message_arrives_unchanged(message: object) -> None:
    arrived = pickle.loads(pickle.dumps(message, 5))
    assert arrived == message
    assert type(arrived) is type(message)

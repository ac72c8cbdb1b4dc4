"""Streams groups are seen and steered over HTTP: tasks, targets, fences, held revocations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from minibroker.testing import ControlError, MiniBroker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    Topology,
)
from tests.broker.network.raw_client import RawClient

SETTINGS = {
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.assignment.interval.ms": 0,
}


class Application:
    """A streams group, whose name is also that of its topic of two partitions."""

    def __init__(self, broker: MiniBroker, name: str) -> None:
        self.broker, self.name = broker, name
        broker.create_topic(name, partitions=2)
        self.client = RawClient(broker.bootstrap_servers)
        self.epochs: dict[str, int] = {}

    def beat(self, member: str, epoch: int | None = None, *owned: int) -> Any:
        """Send a heartbeat; ``owned`` are the active tasks that the member has, if any."""
        known = self.epochs.get(member, 0) if epoch is None else epoch
        source = Subtopology(subtopology_id="0", source_topics=[self.name])
        joining: dict[str, Any] = {
            "topology": Topology(epoch=0, subtopologies=[source]),
            "process_id": member,
            "rebalance_timeout_ms": 60_000,
        }
        tasks = [TaskIds(subtopology_id="0", partitions=list(owned))]
        having: dict[str, Any] = {"active_tasks": tasks, "standby_tasks": [], "warmup_tasks": []}
        request = StreamsGroupHeartbeatRequest(
            group_id=self.name,
            member_id=member,
            member_epoch=known,
            **({} if known else joining),
            **(having if owned else {}),
        )
        response = self.client.ask(request, 1)
        self.epochs[member] = response.member_epoch
        return response

    def view(self) -> dict[str, Any]:
        return self.broker.wait_for_group(self.name, members=len(self.epochs))

    def act(self, action: str, **fields: Any) -> int:
        return self.broker.faults.act(action, group=self.name, **fields)


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def application(broker: MiniBroker, request: pytest.FixtureRequest) -> Iterator[Application]:
    made = Application(broker, request.node.name)
    yield made
    made.client.__exit__(None, None, None)


def active(response: Any) -> set[int]:
    assert response.error_code == ErrorCode.NONE
    return {at for each in response.active_tasks for at in each.partitions}


def test_view_says_which_member_has_yet_to_give_up_which_task(application: Application) -> None:
    assert active(application.beat("a")) == {0, 1}
    application.beat("b")
    (kept,) = active(application.beat("a"))
    view = application.view()
    assert (view["type"], view["state"]) == ("streams", "Reconciling")
    assert [each["subtopology"] for each in view["topology"]] == ["0"]
    one, two = sorted(view["members"], key=lambda member: str(member["member_id"]))
    assert [task["partition"] for task in one["streams"]["tasks"]] == [kept]
    assert [task["partition"] for task in one["streams"]["to_revoke"]] == [1 - kept]
    assert [task["partition"] for task in two["streams"]["target"]] == [1 - kept]
    lost = f"0_{1 - kept}"
    assert f"a has yet to give up {lost}" in view["waits_for"]
    assert f"b waits for {lost}, which process a has" in view["waits_for"]


def test_missing_topic_is_what_a_group_waits_for(broker: MiniBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        source = Subtopology(subtopology_id="0", source_topics=["no-such-topic"])
        request = StreamsGroupHeartbeatRequest(
            group_id="waiting",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            process_id="p",
            topology=Topology(epoch=0, subtopologies=[source]),
        )
        assert client.ask(request, 1).error_code == ErrorCode.NONE
    view = broker.wait_for_group("waiting", "NotReady", members=1)
    assert view["waits_for"][0] == "Source topics no-such-topic are missing."


def test_targets_are_set_and_members_fenced(application: Application) -> None:
    application.beat("a")
    assert application.act("assign", assignment={"a": {"0": [1]}}) == 1
    assert active(application.beat("a")) == {1}
    application.beat("a", None, 1)
    assert application.view()["state"] == "Stable"
    with pytest.raises(ControlError, match="no member has the active task 0_9"):
        application.act("assign", assignment={"a": {"0": [9]}})
    assert application.act("fence_member", member="a") == 1
    assert application.beat("a").error_code == ErrorCode.FENCED_MEMBER_EPOCH
    application.beat("a", 0)
    assert application.act("rebalance") == 1
    assert application.act("expire_member", member="a") == 1
    assert application.beat("a").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_given_up_task_is_held_until_the_rule_is_removed(application: Application) -> None:
    application.beat("a")
    application.beat("b")
    (kept,) = active(application.beat("a"))
    hold = application.broker.faults.add("hold", point="group.revoked", group=application.name)
    application.beat("a", None, kept)
    hold.wait(hits=1)
    held = f"a has given up 0_{1 - kept}, which a fault rule holds"
    assert held in application.view()["waits_for"]
    assert application.beat("b").active_tasks is None
    hold.release()
    while application.beat("a").member_epoch == 2:
        pass
    assert active(application.beat("b")) == {1 - kept}
    assert application.view()["state"] == "Stable"
    hold.remove()

"""Fifty consumers settle in one consumer group (KIP-848), also when half of them leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer

from minibroker.testing import MiniBroker
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.minibroker

MEMBERS, PARTITIONS = 50, 120
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.assignment.interval.ms": 200,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings=SETTINGS) as started:
        yield started


def member(broker: MiniBroker, group: str, assignor: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": "consumer",
            "group.remote.assignor": assignor,
            "log_level": 0,
        }
    )


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_fifty_members_share_a_topic(
    broker: MiniBroker, fresh: Callable[[str], str], assignor: str
) -> None:
    topic, group = broker.create_topic(fresh("t"), partitions=PARTITIONS), fresh("g")
    with ExitStack() as stack:
        consumers = [member(broker, group, assignor) for _ in range(MEMBERS)]
        for each in consumers:
            stack.callback(each.close)
            each.subscribe([topic])

        def shares() -> list[set[int]]:
            for each in consumers:
                each.poll(0)
            return [{at.partition for at in each.assignment()} for each in consumers]

        def is_settled() -> dict[str, Any] | None:
            found = shares()
            view: dict[str, Any] = broker.control.get("v1", "groups", group)
            everything = sorted(at for share in found for at in share)
            is_shared = everything == list(range(PARTITIONS)) and all(found)
            is_stable = view["state"] == "Stable" and len(view["members"]) == len(consumers)
            return view if is_shared and is_stable else None

        broker.wait_for_group(group, members=MEMBERS, timeout_s=PATIENCE_S)
        first = wait_until(is_settled, "all members to have their partitions")
        assert first is not None
        assert first["waits_for"] == []
        leaving = consumers[MEMBERS // 2 :]
        del consumers[MEMBERS // 2 :]
        for each in leaving:
            each.close()
        assert wait_until(is_settled, "the rest to share the partitions") is not None

"""`minibroker groups describe` shows streams groups with members, tasks, topology and offsets."""

from __future__ import annotations

import json
from typing import Any

from minibroker.client.kafka_client import KafkaClient
from minibroker.testing import MiniBroker
from minibroker_protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)


def test_streams_group_is_described(
    command: Any, minibroker: MiniBroker, minibroker_topic: str, minibroker_group: str
) -> None:
    command("produce", minibroker_topic, "a", "b")
    sources = Subtopology(subtopology_id="0", source_topics=[minibroker_topic])
    with KafkaClient(minibroker.bootstrap_servers) as client:
        request = StreamsGroupHeartbeatRequest(
            group_id=minibroker_group,
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            process_id="p",
            topology=Topology(epoch=0, subtopologies=[sources]),
        )
        coordinator = client.coordinator(minibroker_group)
        joined = client.send(request, StreamsGroupHeartbeatResponse, coordinator)
        assert joined.error_code == 0
    lines = command("groups", "describe", minibroker_group).stdout.splitlines()
    # The first target waits for further members.
    head = f"group {minibroker_group}: Assigning, 1 members, streams group in epoch 2"
    assert lines[0].startswith(head)
    assert lines[2].split()[0] == "m"
    assert lines[2].split()[-4:] == ["p", "1", "none", "none"]
    assert lines[-1].split() == ["0", minibroker_topic, "none", "none"]
    shown = json.loads(command("groups", "describe", minibroker_group, "--json").stdout)
    assert (shown["type"], shown["state"], shown["assignor"]) == ("streams", "Assigning", "sticky")
    assert shown["members"][0]["process"] == "p"
    assert shown["topology"] == [
        {
            "subtopology": "0",
            "source_topics": [minibroker_topic],
            "repartition_topics": [],
            "changelog_topics": [],
        }
    ]
    assert shown["offsets"] == []

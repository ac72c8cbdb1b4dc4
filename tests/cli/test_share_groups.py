"""`minibroker groups describe` shows share groups with members, start offsets and lag."""

from __future__ import annotations

import json
from typing import Any

from minibroker.client.kafka_client import KafkaClient
from minibroker.testing import MiniBroker
from minibroker_protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


def test_share_group_is_described(
    command: Any, minibroker: MiniBroker, minibroker_topic: str, minibroker_group: str
) -> None:
    command("produce", minibroker_topic, "a", "b")
    with KafkaClient(minibroker.bootstrap_servers) as client:
        request = ShareGroupHeartbeatRequest(
            group_id=minibroker_group,
            member_id="m",
            member_epoch=0,
            subscribed_topic_names=[minibroker_topic],
        )
        coordinator = client.coordinator(minibroker_group)
        joined = client.send(request, ShareGroupHeartbeatResponse, coordinator)
        assert joined.error_code == 0
    lines = command("groups", "describe", minibroker_group).stdout.splitlines()
    head = f"group {minibroker_group}: Stable, 1 members, share group in epoch"
    assert lines[0].startswith(head)
    assert lines[2].split()[0] == "m"
    assert lines[-1].split() == [minibroker_topic, "0", "-", "-"]
    shown = json.loads(command("groups", "describe", minibroker_group, "--json").stdout)
    assert (shown["type"], shown["state"]) == ("share", "Stable")
    assert shown["members"][0]["partitions"] == [f"{minibroker_topic}-0"]
    offset = {"topic": minibroker_topic, "partition": 0, "start_offset": None, "lag": None}
    assert shown["offsets"] == [offset]

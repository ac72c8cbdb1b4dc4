from __future__ import annotations

from typing import Any

import pytest

from minibroker.cli.client import Client
from minibroker.cli.errors import Refused
from minibroker.cli.offsets import EARLIEST, LATEST, list_offsets
from minibroker.testing import MiniBroker
from protocol.messages.metadata import MetadataResponsePartition


def test_both_ends_of_every_partition_are_told(
    command: Any, minibroker: MiniBroker, minibroker_group: str
) -> None:
    topic = minibroker.create_topic(minibroker_group, 3)
    command("produce", topic, "a", "b", "--partition", "1")
    with Client(minibroker.bootstrap_servers) as client:
        found = client.topic(topic)
        assert list_offsets(client, found, EARLIEST) == {0: 0, 1: 0, 2: 0}
        assert list_offsets(client, found, LATEST) == {0: 0, 1: 2, 2: 0}
        assert list_offsets(client, found, 0) == {0: -1, 1: 0, 2: -1}


def test_a_partition_that_is_not_there_is_told(
    minibroker: MiniBroker, minibroker_topic: str
) -> None:
    with Client(minibroker.bootstrap_servers) as client:
        found = client.topic(minibroker_topic)
        found.partitions = [MetadataResponsePartition(partition_index=9, leader_id=1)]
        with pytest.raises(Refused, match=f"offsets of {minibroker_topic}-9"):
            list_offsets(client, found, LATEST)

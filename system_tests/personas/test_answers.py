"""Brokers with a persona get the requests that the real brokers got, and give the recorded answers.

One real broker, of Kafka 2.8, is started and its answers to more requests are compared with those
of the persona.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from minibroker.broker.apis.registry import serving
from minibroker.broker.personas.persona import NAMES, load
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode, ProtocolError
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.describe_transactions import DescribeTransactionsRequest
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.update_features import UpdateFeaturesRequest
from minibroker_protocol.schema import Message
from system_tests.conftest import without_toolchain
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.jars import ToolchainMissing, kafka_broker_jars
from system_tests.harness.waiting import wait_until
from system_tests.peers.conversation import DISCONNECTED, comparable, differences
from system_tests.personas import questions
from system_tests.personas.brokers import RELEASES, kafka

pytestmark = pytest.mark.minibroker

REAL: Final = "kafka-2.8"


@contextmanager
def minibroker(name: str, **settings: str) -> Iterator[RunningBroker]:
    """A broker with a persona and Kafka's defaults."""
    with start_minibroker("--profile", "kafka", settings={"persona": name, **settings}) as broker:
        yield broker


@pytest.mark.parametrize("name", NAMES)
def test_persona_gives_the_recorded_answers(name: str) -> None:
    persona = load(name)
    wanted = persona.behaviour._asdict()
    del wanted["throttled"]  # Waits for seconds; tested below.
    served = serving(Settings.from_sources(pairs=[f"persona={name}"])).advertised
    with minibroker(name) as broker, Client(broker.address) as client:
        versions = questions.ask_versions(broker)
        assert versions == served
        assert questions.ask_answers(client) == wanted
        features = questions.ask_features(broker, versions[18][1])
        assert (features is None) == (persona.features is None)
        if features is not None and persona.features is not None:
            assert features["finalized"].items() <= persona.features.finalized.items()
            assert features["supported"].keys() <= persona.features.supported.keys()
        if 32 in versions:
            assert questions.ask_defaults(client, versions, 1) == persona.defaults


@pytest.mark.parametrize("name", ["kafka-1.1", "kafka-2.8"])
def test_persona_throttles_as_recorded(name: str) -> None:
    with minibroker(name, **questions.QUOTA_SETTINGS) as broker:
        with Client(broker.address) as client:
            questions.ask_new_topic(client)
        assert questions.ask_throttled(broker, has_quotas=False) == load(name).behaviour.throttled


def requests() -> dict[str, tuple[Message, int]]:
    """Requests by name, each with a version; above the maximum of Kafka 2.8 at the end."""
    topic, missing = [MetadataRequestTopic(name="new")], [MetadataRequestTopic(name="missing")]
    offsets = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
    fetched = [FetchTopic(topic="new", partitions=[FetchPartition(partition=0, fetch_offset=9)])]
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    new = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    more = CreatePartitionsTopic(name="new", count=1)
    software = ApiVersionsRequest(client_software_name="-", client_software_version="1")
    return {
        "topic": (MetadataRequest(topics=topic), 11),
        "topic without creation": (
            MetadataRequest(topics=missing, allow_auto_topic_creation=False),
            9,
        ),
        "offsets": (
            ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsTopic(name="new", partitions=offsets)]
            ),
            6,
        ),
        "fetch out of range": (FetchRequest(max_wait_ms=0, topics=fetched), 12),
        "existing topic": (CreateTopicsRequest(topics=[new], timeout_ms=10_000), 7),
        "as many partitions": (CreatePartitionsRequest(topics=[more], timeout_ms=10_000), 3),
        "missing topic": (DeleteTopicsRequest(topic_names=["missing"], timeout_ms=10_000), 5),
        "member without an id": (join, 7),
        "unknown member": (HeartbeatRequest(group_id="g", member_id="m", generation_id=1), 4),
        "group": (DescribeGroupsRequest(groups=["none"]), 5),
        "software": (software, 3),
        "features": (UpdateFeaturesRequest(timeout_ms=1000), 0),
        "cluster": (DescribeClusterRequest(), 0),
        "newer metadata": (MetadataRequest(topics=topic), 12),
        "newer fetch": (FetchRequest(max_wait_ms=0), 13),
        "newer coordinators": (FindCoordinatorRequest(coordinator_keys=["g"]), 4),
        "newer members": (join, 8),
        "newer API": (DescribeTransactionsRequest(transactional_ids=["t"]), 0),
        "newer cluster": (DescribeClusterRequest(), 1),
    }


def answers(broker: RunningBroker) -> dict[str, Any]:
    """The comparable part of each response, by the name of the request."""
    found = {}
    with Client(broker.address) as client:
        questions.ask_answers(client)
        wait_until(lambda: _has_coordinator(client), "a coordinator")
    for name, (request, version) in requests().items():
        with Client(broker.address) as client:
            try:
                found[name] = comparable(client.ask(request, version))
            except (ConnectionError, ProtocolError, AssertionError):
                found[name] = DISCONNECTED
    return found


def _has_coordinator(client: Client) -> bool:
    found = client.ask(FindCoordinatorRequest(key="g", key_type=0), 3)
    (group,) = client.ask(DescribeGroupsRequest(groups=["g"]), 5).groups
    return bool(found.error_code == group.error_code == ErrorCode.NONE)


@pytest.mark.java
def test_persona_answers_as_the_real_broker(tmp_path: Path) -> None:
    release = RELEASES[REAL]
    try:
        kafka_broker_jars(release.version, release.scala, release.zookeeper)
    except ToolchainMissing as missing:
        without_toolchain(missing)
    with kafka(release, tmp_path) as real:
        assert questions.ask_versions(real) == load(REAL).versions
        wanted = answers(real)
    with minibroker(REAL, **{"offsets.topic.num.partitions": "1"}) as broker:
        found = answers(broker)
    assert [name for name, answer in wanted.items() if answer == DISCONNECTED] == [
        name for name in requests() if name.startswith("newer")
    ]
    assert differences(wanted, found) == []

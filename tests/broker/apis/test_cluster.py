"""The cluster's brokers, quorum and features are described and changed."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis import api_versions
from minibroker.broker.apis.cluster import (
    DESCRIBE_CLUSTER,
    DESCRIBE_QUORUM,
    UNREGISTER_BROKER,
    UPDATE_FEATURES,
)
from minibroker.broker.metadata.features import TRANSACTION_VERSION
from minibroker.broker.security.acl import CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest
from minibroker_protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from minibroker_protocol.messages.unregister_broker import UnregisterBrokerRequest
from minibroker_protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest


@pytest.mark.parametrize("version", range(3))
async def test_cluster_is_described_with_listener_address(make_apis: Any, version: int) -> None:
    apis = await make_apis("broker.rack=r1")
    response = await apis.ask(
        DESCRIBE_CLUSTER, DescribeClusterRequest(), version, listener="OUTSIDE"
    )
    assert apis.asked == {}
    assert response.error_code == ErrorCode.NONE
    assert response.cluster_id == apis.cluster.image.cluster_id
    assert response.controller_id == 1
    [broker] = response.brokers
    assert (broker.broker_id, broker.host, broker.port, broker.rack) == (
        1,
        "example.test",
        19092,
        "r1",
    )
    assert not broker.is_fenced
    assert response.cluster_authorized_operations == OPERATIONS_NOT_ASKED


async def test_authorized_operations_are_included_if_requested(apis: Any) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = await apis.ask(DESCRIBE_CLUSTER, request, 0)
    assert response.cluster_authorized_operations == CLUSTER_OPERATIONS


@pytest.mark.parametrize(
    ("kind", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_other_endpoint_type_is_rejected(apis: Any, kind: int, code: ErrorCode) -> None:
    response = await apis.ask(DESCRIBE_CLUSTER, DescribeClusterRequest(endpoint_type=kind), 1)
    assert response.error_code == code
    assert response.brokers == []


# Describe quorum ----------------------------------------------------------------------------------


def about(name: str, *indexes: int) -> DescribeQuorumRequestTopicData:
    partitions = [DescribeQuorumRequestPartitionData(partition_index=index) for index in indexes]
    return DescribeQuorumRequestTopicData(topic_name=name, partitions=partitions)


METADATA = about("__cluster_metadata", 0)


@pytest.mark.parametrize("version", range(3))
async def test_controller_leads_the_metadata_log(apis: Any, version: int) -> None:
    response = await apis.ask(DESCRIBE_QUORUM, DescribeQuorumRequest(topics=[METADATA]), version)
    image = apis.cluster.image
    assert response.error_code == ErrorCode.NONE
    [partition] = response.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.NONE, 1)
    assert (partition.leader_epoch, partition.high_watermark) == (
        image.controller_epoch,
        image.number,
    )
    [voter] = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (1, image.number)
    assert partition.observers == []
    if version >= 2:
        assert voter.replica_directory_id == bytes(range(16))
        [node] = response.nodes
        [listener] = node.listeners
        assert (node.node_id, listener.name, listener.port) == (1, "PLAINTEXT", 9092)


@pytest.mark.parametrize(
    "topics",
    [
        [about("__cluster_metadata", 1)],
        [about("__cluster_metadata", 0, 0)],
        [about("t", 0)],
        [METADATA, METADATA],
        [METADATA, about("t")],
    ],
)
async def test_other_partition_is_unknown(apis: Any, topics: Any) -> None:
    response = await apis.ask(DESCRIBE_QUORUM, DescribeQuorumRequest(topics=topics), 2)
    assert [topic.topic_name for topic in response.topics] == [one.topic_name for one in topics]
    errors = {partition.error_code for topic in response.topics for partition in topic.partitions}
    assert errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_no_partition_is_described_if_none_is_requested(apis: Any) -> None:
    response = await apis.ask(DESCRIBE_QUORUM, DescribeQuorumRequest(topics=[]), 2)
    assert (response.error_code, response.topics) == (ErrorCode.NONE, [])


# Update features ----------------------------------------------------------------------------------


NAME = TRANSACTION_VERSION.name


async def update(
    apis: Any, level: int, version: int, *, name: str = NAME, trial: bool = False, **fields: Any
) -> Any:
    change = FeatureUpdateKey(feature=name, max_version_level=level, **fields)
    request = UpdateFeaturesRequest(feature_updates=[change], validate_only=trial)
    return await apis.ask(UPDATE_FEATURES, request, version)


async def finalized(apis: Any) -> tuple[int, int]:
    """The level of transactions that ApiVersions lists, and the epoch."""
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    response = await apis.ask(api_versions.API, request, 4)
    [feature] = [
        each for each in response.finalized_features if each.name == TRANSACTION_VERSION.name
    ]
    return feature.max_version_level, response.finalized_features_epoch


@pytest.mark.parametrize("version", range(3))
async def test_downgrade_is_listed_by_api_versions(apis: Any, version: int) -> None:
    fields = {"allow_downgrade": True} if version == 0 else {"upgrade_type": 2}
    response = await update(apis, 1, version, **fields)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert [result.feature for result in response.results] == ([NAME] if version < 2 else [])
    assert await finalized(apis) == (1, 1)


@pytest.mark.parametrize("version", range(3))
async def test_downgrade_must_be_permitted(apis: Any, version: int) -> None:
    response = await update(apis, 1, version)
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert response.results == []
    assert "Can't downgrade" in response.error_message
    assert await finalized(apis) == (2, 0)


@pytest.mark.parametrize("version", [1, 2])
async def test_trial_changes_nothing(apis: Any, version: int) -> None:
    response = await update(apis, 1, version, upgrade_type=3, trial=True)
    assert response.error_code == ErrorCode.NONE
    assert await finalized(apis) == (2, 0)


async def test_unknown_feature_is_rejected(apis: Any) -> None:
    response = await update(apis, 1, 1, name="other")
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION


# Unregister broker --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broker_id", "error"),
    [
        (7, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (-1, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (1, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_no_broker_can_be_unregistered(apis: Any, broker_id: int, error: ErrorCode) -> None:
    response = await apis.ask(UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id=broker_id), 0)
    assert response.error_code == error
    assert response.error_message

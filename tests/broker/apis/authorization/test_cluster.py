"""Configs: each resource by its own right."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.security.acl import Operation, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.apis.authorization.callers import ALICE, SETTINGS, ask_as, grant
from tests.broker.apis.conftest import ApisMaker

KINDS = {(2, "mine"): 0, (2, "theirs"): 29, (4, "1"): 31, (32, "a-group"): 30, (8, "x"): 31}
"""Resources by type and name, and the error of a client with rights to the first one only."""


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    made = await make_apis(*SETTINGS)
    outcome = await made.cluster.create_topics([NewTopic("mine"), NewTopic("theirs")])
    await made.controller.publish(outcome.updates)
    await grant(made, Resource.TOPIC, "mine", Operation.ALTER_CONFIGS)
    return made


async def test_each_config_resource_requires_its_own_permission(apis: Any) -> None:
    described = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for kind, name in KINDS
        ]
    )
    response = await ask_as(apis, ALICE, described, 4)
    found = {(one.resource_type, one.resource_name): one.error_code for one in response.results}
    assert found == KINDS
    altered = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterableConfig(name="retention.ms", config_operation=0, value="1")],
            )
            for kind, name in KINDS
        ]
    )
    response = await ask_as(apis, ALICE, altered, 1)
    found = {(one.resource_type, one.resource_name): one.error_code for one in response.responses}
    assert found == KINDS
    assert apis.cluster.image.topic_overrides("mine") == {"retention.ms": "1"}
    assert apis.cluster.image.topic_overrides("theirs") == {}


async def test_describe_configs_on_cluster_allows_brokers_but_not_topics(apis: Any) -> None:
    await grant(apis, Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE_CONFIGS)
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((4, "1"), (2, "theirs"))
    ]
    response = await ask_as(apis, ALICE, DescribeConfigsRequest(resources=resources), 4)
    assert [one.error_code for one in response.results] == [
        0,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ]

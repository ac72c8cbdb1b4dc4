"""DescribeConfigs: topics and the broker, the fields of each version, and rejections."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.apis.config_alteration import BROKER_TYPE as BROKER
from minibroker.broker.apis.config_alteration import TOPIC_TYPE as TOPIC
from minibroker.broker.apis.describe_configs import API
from minibroker.broker.metadata.configs import Alteration, ConfigOperation, Op
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS
from minibroker.broker.settings.types import Kind
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)


@pytest.fixture
async def with_topic(apis: Any) -> Any:
    wanted = NewTopic("a", config=[("retention.ms", "5"), ("cleanup.policy", "compact,delete")])
    await apis.controller.publish((await apis.cluster.create_topics([wanted])).updates)
    return apis


async def describe(
    apis: Any, kind: int, name: str, version: int = 4, keys: list[str] | None = None, **fields: Any
) -> Any:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    response = await apis.ask(API, DescribeConfigsRequest(resources=[resource], **fields), version)
    assert apis.asked == {}
    [result] = response.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


@pytest.mark.parametrize("version", range(1, 5))
async def test_topic_is_described_with_all_configs(with_topic: Any, version: int) -> None:
    result = await describe(with_topic, TOPIC, "a", version)
    assert result.error_code == ErrorCode.NONE
    found = {config.name: config for config in result.configs}
    assert set(found) == set(TOPIC_SETTINGS)
    assert found["retention.ms"].value == "5"
    assert found["retention.ms"].config_source == 1
    assert found["cleanup.policy"].value == "compact,delete"
    assert found["segment.bytes"].config_source == 5
    assert not any(config.read_only or config.is_sensitive for config in result.configs)
    assert all(config.synonyms == [] for config in result.configs)
    if version >= 3:
        assert found["retention.ms"].config_type == Kind.LONG
        assert found["cleanup.policy"].config_type == Kind.LIST
        assert found["retention.ms"].documentation is None


async def test_only_requested_configs_are_returned(with_topic: Any) -> None:
    result = await describe(
        with_topic,
        TOPIC,
        "a",
        keys=["retention.ms", "colour"],
        include_synonyms=True,
        include_documentation=True,
    )
    [config] = result.configs
    assert config.documentation.startswith("How long records are kept")
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("retention.ms", "5", 1),
        ("log.retention.hours", "168", 5),
    ]


async def test_empty_configuration_keys_return_all_configs(with_topic: Any) -> None:
    assert len((await describe(with_topic, TOPIC, "a", keys=[])).configs) == len(TOPIC_SETTINGS)


async def test_broker_configs_are_marked_read_only_unless_dynamic(make_apis: Any) -> None:
    apis = await make_apis("num.io.threads=5", "node.id=7")
    result = await describe(apis, BROKER, "7")
    found = {config.name: config for config in result.configs}
    assert set(found) == set(BROKER_SETTINGS)
    assert (found["num.io.threads"].value, found["num.io.threads"].config_source) == ("5", 4)
    assert found["log.retention.ms"].value is None
    changeable = {name for name, config in found.items() if not config.read_only}
    assert changeable == {name for name, setting in BROKER_SETTINGS.items() if setting.dynamic}
    assert (await describe(apis, BROKER, "")).configs == []


@pytest.mark.parametrize(
    ("kind", "name", "code", "words"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic 'missing'"),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION, "is invalid"),
        (BROKER, "2", ErrorCode.INVALID_REQUEST, "expected 1 or empty string, but received 2"),
        (BROKER, "x", ErrorCode.INVALID_REQUEST, "received x"),
        (64, "1", ErrorCode.INVALID_REQUEST, "Unsupported resource type: 64"),
        (8, "2", ErrorCode.INVALID_REQUEST, "expected 1 but received '2'"),
        (8, "", ErrorCode.INVALID_REQUEST, "expected 1 but received ''"),
        (16, "", ErrorCode.INVALID_REQUEST, "must not be empty"),
        (32, "", ErrorCode.INVALID_REQUEST, "must not be empty"),
    ],
)
async def test_invalid_resource_is_rejected_with_message(
    apis: Any, kind: int, name: str, code: ErrorCode, words: str
) -> None:
    result = await describe(apis, kind, name)
    assert result.error_code == code
    assert words in result.error_message
    assert result.configs == []


async def test_dynamic_default_broker_configs_are_described(apis: Any) -> None:
    step = (ConfigOperation("max.connections", Op.SET, "5"),)
    outcome = await apis.cluster.alter_configs([Alteration("brokers", "", step)])
    await apis.controller.publish(outcome.updates)
    [config] = (await describe(apis, BROKER, "")).configs
    assert (config.name, config.value, config.config_source) == ("max.connections", "5", 3)
    assert not config.read_only


async def test_group_configs_are_described_with_broker_synonyms(apis: Any) -> None:
    apis.image = replace(
        apis.cluster.image,
        configs={("groups", "a%2Fb"): {"consumer.session.timeout.ms": "50000"}},
    )
    found = {
        config.name: config
        for config in (await describe(apis, 32, "a/b", include_synonyms=True)).configs
    }
    session = found["consumer.session.timeout.ms"]
    assert (session.value, session.config_source) == ("50000", 8)
    assert [(each.name, each.value, each.source) for each in session.synonyms] == [
        ("consumer.session.timeout.ms", "50000", 8),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]
    heartbeat = found["consumer.heartbeat.interval.ms"]
    assert (heartbeat.value, heartbeat.config_source) == ("5000", 5)
    assert "consumer.assignor.offload.enable" not in found


async def test_client_metrics_are_described_with_defaults(apis: Any) -> None:
    apis.image = replace(apis.cluster.image, configs={("client-metrics", "s"): {"metrics": "a,b"}})
    found = {
        config.name: (config.value, config.config_source, len(config.synonyms))
        for config in (await describe(apis, 16, "s", include_synonyms=True)).configs
    }
    assert found == {
        "metrics": ("a,b", 7, 1),
        "interval.ms": ("300000", 5, 0),
        "match": ("", 5, 0),
    }


async def test_loggers_are_described_with_their_levels(apis: Any) -> None:
    key = ("broker-loggers", "1")
    apis.image = replace(apis.cluster.image, configs={key: {"minibroker.storage": "DEBUG"}})
    found = {config.name: config for config in (await describe(apis, 8, "1")).configs}
    assert found["root"].value == found["minibroker.network"].value == "INFO"
    assert (found["minibroker.storage"].value, found["root"].config_source) == ("DEBUG", 6)
    assert {config.name for config in (await describe(apis, 8, "1", keys=["root"])).configs} == {
        "root"
    }

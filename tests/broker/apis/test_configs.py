"""Configs are described with their sources, altered as a whole or one by one, and listed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.apis.configs import (
    ALTER_CONFIGS,
    BROKER_LOGGER_TYPE,
    BROKER_TYPE,
    CLIENT_METRICS_TYPE,
    DESCRIBE_CONFIGS,
    GROUP_TYPE,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
    TOPIC_TYPE,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    broker_entries,
    change_configs,
    default_entries,
    group_entries,
    topic_entries,
)
from minibroker.broker.apis.configs import BROKER_TYPE as BROKER
from minibroker.broker.apis.configs import TOPIC_TYPE as TOPIC
from minibroker.broker.metadata.configs import Alteration, ConfigOperation, Op
from minibroker.broker.metadata.image import CLIENT_METRICS, GROUP
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS, Settings
from minibroker.broker.settings.setting import Kind
from minibroker.runtime import hosts
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig as IncrementalConfig,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from minibroker_protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from minibroker_protocol.messages.list_config_resources import ListConfigResourcesRequest


def topic_entry(name: str, *pairs: str, **overrides: str) -> ConfigEntry:
    given = {key.replace("_", "."): value for key, value in overrides.items()}
    entries = topic_entries(Settings.from_sources(pairs=pairs), {}, given)
    return next(entry for entry in entries if entry.setting.name == name)


def broker_entry(name: str, *pairs: str, profile: str = "laptop") -> ConfigEntry:
    settings = Settings.from_sources(pairs=pairs, profile=profile)
    return next(entry for entry in broker_entries(settings, {}) if entry.setting.name == name)


def test_topic_default_has_broker_default_as_synonym() -> None:
    entry = topic_entry("retention.ms")
    assert (entry.value, entry.source) == ("604800000", ConfigSource.DEFAULT)
    assert entry.synonyms == (("log.retention.hours", "168", ConfigSource.DEFAULT),)


def test_static_broker_config_precedes_default_and_keeps_its_unit() -> None:
    entry = topic_entry("retention.ms", "log.retention.minutes=5")
    assert (entry.value, entry.source) == ("300000", ConfigSource.STATIC_BROKER)
    assert entry.synonyms == (
        ("log.retention.minutes", "5", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    )


def test_topic_config_is_first_of_its_synonyms() -> None:
    entry = topic_entry("retention.ms", "log.retention.ms=7", retention_ms="9")
    assert (entry.value, entry.source) == ("9", ConfigSource.TOPIC)
    assert [synonym.name for synonym in entry.synonyms] == [
        "retention.ms",
        "log.retention.ms",
        "log.retention.hours",
    ]


def test_topic_config_without_broker_synonym_uses_default() -> None:
    entry = topic_entry("segment.jitter.ms")
    assert (entry.value, entry.source, entry.synonyms) == ("0", ConfigSource.DEFAULT, ())


def test_broker_config_reports_its_source() -> None:
    entry = broker_entry("num.io.threads", "num.io.threads=5")
    assert (entry.value, entry.source) == ("5", ConfigSource.STATIC_BROKER)
    assert entry.synonyms == (
        ("num.io.threads", "5", ConfigSource.STATIC_BROKER),
        ("num.io.threads", "1", ConfigSource.DEFAULT),
    )
    entry = broker_entry("num.io.threads", profile="kafka")
    assert (entry.value, entry.source) == ("8", ConfigSource.DEFAULT)


def test_unset_broker_config_has_null_value() -> None:
    entry = broker_entry("log.retention.ms")
    assert (entry.value, entry.source, entry.synonyms) == (None, ConfigSource.DEFAULT, ())


def test_every_config_is_listed_once_sorted_by_name() -> None:
    settings = Settings.from_sources()
    assert [e.setting.name for e in broker_entries(settings, {})] == sorted(BROKER_SETTINGS)
    assert [e.setting.name for e in topic_entries(settings, {}, {})] == sorted(TOPIC_SETTINGS)


CHANGED = {
    ("brokers", "1"): {"log.retention.ms": "1", "listener.name.inside.max.connections": "2"},
    ("brokers", "<default>"): {"log.retention.ms": "3", "max.connections": "4", "bad": "5"},
}
STATIC = Settings.from_sources(pairs=["log.retention.ms=6", "log.retention.hours=7"])


def test_dynamic_broker_config_precedes_static_config() -> None:
    [entry] = [e for e in topic_entries(STATIC, CHANGED, {}) if e.name == "retention.ms"]
    assert (entry.value, entry.source) == ("1", ConfigSource.DYNAMIC_BROKER)
    assert entry.synonyms == (
        ("log.retention.ms", "1", ConfigSource.DYNAMIC_BROKER),
        ("log.retention.ms", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.ms", "6", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "7", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    )
    [entry] = [e for e in broker_entries(STATIC, CHANGED) if e.name == "log.retention.ms"]
    assert [synonym.value for synonym in entry.synonyms] == ["1", "3", "6"]
    assert entry.value == "1"


def test_listener_config_has_broker_config_as_synonym() -> None:
    name = "listener.name.inside.max.connections"
    [entry] = [e for e in broker_entries(STATIC, CHANGED) if e.name == name]
    assert (entry.value, entry.source) == ("2", ConfigSource.DYNAMIC_BROKER)
    assert entry.synonyms == (
        (name, "2", ConfigSource.DYNAMIC_BROKER),
        ("max.connections", "4", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("max.connections", "2147483647", ConfigSource.DEFAULT),
    )


def test_default_broker_entries_are_only_dynamic_default_configs() -> None:
    assert [(e.name, e.value, e.source) for e in default_entries(STATIC, CHANGED)] == [
        ("log.retention.ms", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("max.connections", "4", ConfigSource.DYNAMIC_DEFAULT_BROKER),
    ]


# Config alteration --------------------------------------------------------------------------------


STEP = (ConfigOperation("max.connections", Op.SET, "5"),)


async def ask(
    apis: Any, *wishes: ConfigChange, validate_only: bool = False
) -> list[tuple[int, str] | None]:
    found = await change_configs(
        apis.controller, wishes, replace=False, validate_only=validate_only
    )
    return list(found)


async def test_config_changes_are_answered_in_request_order(apis: Any) -> None:
    unknown, fine, topic = await ask(
        apis,
        ConfigChange(64, "1", STEP),
        ConfigChange(BROKER_TYPE, "1", STEP),
        ConfigChange(TOPIC_TYPE, "missing", (ConfigOperation("retention.ms", Op.SET, "5"),)),
    )
    assert unknown == (42, "Unknown resource type 64")
    assert fine is None
    assert topic is not None
    assert topic[0] == 3
    assert apis.controller.at_processor.configs["brokers", "1"] == {"max.connections": "5"}


async def test_duplicate_resource_is_rejected(apis: Any) -> None:
    other = (ConfigOperation("max.connections", Op.SET, "6"),)
    answers = await ask(
        apis, ConfigChange(BROKER_TYPE, "1", STEP), ConfigChange(BROKER_TYPE, "1", other)
    )
    assert answers == [(42, "Each resource must appear at most once.")] * 2
    assert ("brokers", "1") not in apis.cluster.image.configs


async def test_validate_only_changes_are_not_applied(apis: Any) -> None:
    assert await ask(apis, ConfigChange(BROKER_TYPE, "1", STEP), validate_only=True) == [None]
    assert apis.controller.published == []


async def test_connection_limit_of_unresolvable_host_is_rejected(
    apis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_up(host: str) -> list[str]:
        if host != "here.test":
            raise OSError(f"nobody knows {host}")
        return ["10.0.0.1"]

    monkeypatch.setattr(hosts, "look_up", look_up)

    def overrides(text: str) -> ConfigChange:
        name = "max.connections.per.ip.overrides"
        return ConfigChange(BROKER_TYPE, "1", (ConfigOperation(name, Op.SET, text),))

    text = "max.connections.per.ip.overrides: cannot resolve gone.test; name hosts that can be "
    text += "looked up, or their addresses"
    assert await ask(apis, overrides("gone.test:1, 10.0.0.2:3, here.test:2")) == [(42, text)]
    assert apis.controller.published == []
    assert await ask(apis, overrides("here.test:2,10.0.0.2:3")) == [None]
    [refusal] = await ask(apis, overrides("10.0.0.0#:3"))
    assert refusal is not None
    assert refusal[0] == 42
    assert "an entry is host:number" in refusal[1]


async def test_unusable_keystore_is_rejected(apis: Any) -> None:
    name = "listener.name.ssl.ssl.keystore.location"
    apis.controller.bad_keys = ["bad.pem"]
    bad, good = (
        ConfigChange(BROKER_TYPE, "1", (ConfigOperation(name, Op.SET, location), *STEP))
        for location in ("bad.pem", "good.pem")
    )
    assert await ask(apis, bad) == [(42, "bad.pem")]
    assert apis.controller.published == []
    assert await ask(apis, bad, validate_only=True) == [(42, "bad.pem")]
    assert await ask(apis, good) == [None]


LEVEL = (ConfigOperation("root", Op.SET, "DEBUG"),)


async def test_log_levels_are_changed_one_by_one_only(apis: Any) -> None:
    wish = ConfigChange(BROKER_LOGGER_TYPE, "1", LEVEL)
    [refused] = await change_configs(apis.controller, (wish,), replace=True, validate_only=False)
    assert refused == (42, "Unknown resource type 8")
    assert await ask(apis, wish) == [None]
    assert apis.controller.at_processor.configs["broker-loggers", "1"] == {"root": "DEBUG"}


async def test_groups_and_client_metrics_are_stored_under_encoded_names(apis: Any) -> None:
    session = (ConfigOperation("consumer.session.timeout.ms", Op.SET, "50000"),)
    interval = (ConfigOperation("interval.ms", Op.SET, "1000"),)
    answers = await ask(
        apis,
        ConfigChange(GROUP_TYPE, "a/b", session),
        ConfigChange(CLIENT_METRICS_TYPE, "all clients", interval),
    )
    assert answers == [None, None]
    configs = apis.controller.at_processor.configs
    assert configs["groups", "a%2Fb"] == {"consumer.session.timeout.ms": "50000"}
    assert configs["client-metrics", "all%20clients"] == {"interval.ms": "1000"}


# Describe configs ---------------------------------------------------------------------------------


@pytest.fixture
async def with_topic(apis: Any) -> Any:
    wanted = NewTopic("a", config=[("retention.ms", "5"), ("cleanup.policy", "compact,delete")])
    await apis.create_topics([wanted])
    return apis


async def describe(
    apis: Any, kind: int, name: str, version: int = 4, keys: list[str] | None = None, **fields: Any
) -> Any:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    response = await apis.ask(
        DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=[resource], **fields), version
    )
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


def test_group_configs_follow_the_settings_of_the_broker() -> None:
    settings = Settings.from_sources(pairs=["group.consumer.heartbeat.interval.ms=6000"])
    entries = {each.setting.name: each for each in group_entries(settings, {}, {})}
    entry = entries["consumer.heartbeat.interval.ms"]
    assert (entry.value, entry.source) == ("6000", ConfigSource.STATIC_BROKER)
    assert [(each.value, each.source) for each in entry.synonyms] == [
        ("6000", ConfigSource.STATIC_BROKER),
        ("5000", ConfigSource.DEFAULT),
    ]


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


# List config resources ----------------------------------------------------------------------------


CONFIGS = {
    (GROUP, "g2"): {"a": "b"},
    (GROUP, "g1"): {"a": "b"},
    (CLIENT_METRICS, "m"): {"a": "b"},
}


async def listed(apis: Any, *types: int, version: int = 1) -> list[tuple[int, str]]:
    apis.image = replace(apis.cluster.image, configs=CONFIGS)
    request = ListConfigResourcesRequest(resource_types=list(types))
    response = await apis.ask(LIST_CONFIG_RESOURCES, request, version)
    assert response.error_code == ErrorCode.NONE
    return [(each.resource_type, each.resource_name) for each in response.config_resources]


async def test_version_0_lists_client_metrics_only(apis: Any) -> None:
    assert await listed(apis, version=0) == [(16, "m")]


@pytest.mark.parametrize(
    ("kind", "names"), [(4, ["1"]), (8, ["1"]), (16, ["m"]), (32, ["g1", "g2"])]
)
async def test_resources_of_one_type_are_listed(apis: Any, kind: int, names: list[str]) -> None:
    assert await listed(apis, kind, kind) == [(kind, name) for name in names]


async def test_without_types_all_are_listed(apis: Any) -> None:
    found = await listed(apis)
    assert found[:5] == [(32, "g1"), (32, "g2"), (16, "m"), (8, "1"), (4, "1")]
    assert {name for kind, name in found if kind == 2} == set(apis.cluster.image.topics)


@pytest.mark.parametrize("types", [[0], [1], [64], [-1], [4, 64]])
async def test_unknown_type_is_rejected(apis: Any, types: list[int]) -> None:
    request = ListConfigResourcesRequest(resource_types=types)
    response = await apis.ask(LIST_CONFIG_RESOURCES, request, 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert response.config_resources == []


# Alter configs ------------------------------------------------------------------------------------


async def alter(
    apis: Any, kind: int, name: str, version: int = 2, **values: str | None
) -> tuple[int, str | None]:
    configs = [
        AlterableConfig(name=key.replace("_", "."), value=value) for key, value in values.items()
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    response = await apis.ask(ALTER_CONFIGS, AlterConfigsRequest(resources=[resource]), version)
    [item] = response.responses
    assert (item.resource_type, item.resource_name) == (kind, name)
    return item.error_code, item.error_message


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_replaces_all_topic_overrides(apis: Any, version: int) -> None:
    wanted = NewTopic("t", config=[("retention.ms", "5"), ("segment.bytes", "1000")])
    await apis.create_topics([wanted])
    assert await alter(apis, 2, "t", version, retention_ms="6") == (0, None)
    assert apis.controller.at_processor.topic_overrides("t") == {"retention.ms": "6"}
    assert await alter(apis, 2, "t", version) == (0, None)
    assert apis.controller.at_processor.topic_overrides("t") == {}


async def test_rejected_alteration_leaves_configs_unchanged(apis: Any) -> None:
    assert await alter(apis, 4, "1", max_connections="6") == (0, None)
    assert (await alter(apis, 4, "1", num_io_threads="6"))[0] == 42
    assert (await alter(apis, 4, "1", max_connections=None))[0] == 42
    assert apis.controller.at_processor.configs["brokers", "1"] == {"max.connections": "6"}


# Incremental alter configs ------------------------------------------------------------------------


SET, DELETE, APPEND, SUBTRACT = range(4)
Step = tuple[str, int, str | None]


@pytest.fixture
async def with_compacted_topic(apis: Any) -> Any:
    wanted = NewTopic("t", config=[("retention.ms", "5"), ("cleanup.policy", "compact")])
    await apis.create_topics([wanted])
    return apis


async def alter_incrementally(
    apis: Any,
    *resources: tuple[int, str, list[Step]],
    version: int = 1,
    validate_only: bool = False,
) -> list[tuple[int, str | None]]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalConfig(name=key, config_operation=op, value=value)
                    for key, op, value in steps
                ],
            )
            for kind, name, steps in resources
        ],
        validate_only=validate_only,
    )
    response = await apis.ask(INCREMENTAL_ALTER_CONFIGS, request, version)
    result = [(item.resource_type, item.resource_name) for item in response.responses]
    assert result == [resource[:2] for resource in resources]
    return [(item.error_code, item.error_message) for item in response.responses]


@pytest.mark.parametrize("version", [0, 1])
async def test_topic_and_broker_configs_are_altered(
    with_compacted_topic: Any, version: int
) -> None:
    answers = await alter_incrementally(
        with_compacted_topic,
        (2, "t", [("retention.ms", DELETE, None), ("cleanup.policy", APPEND, "delete")]),
        (4, "1", [("max.connections", SET, "6")]),
        (4, "", [("log.cleanup.policy", SUBTRACT, "delete"), ("log.retention.ms", SET, "1")]),
        version=version,
    )
    assert answers[:2] == [(0, None), (0, None)]
    # Nothing at all is no policy.
    code, text = answers[2]
    assert code == 42
    assert "log.cleanup.policy" in (text or "")
    image = with_compacted_topic.controller.at_processor
    assert image.configs["topics", "t"] == {"cleanup.policy": "compact,delete"}
    assert image.configs["brokers", "1"] == {"max.connections": "6"}
    assert ("brokers", "<default>") not in image.configs


async def test_invalid_value_leaves_whole_resource_unchanged(
    with_compacted_topic: Any,
) -> None:
    before = with_compacted_topic.controller.at_processor
    [(code, text)] = await alter_incrementally(
        with_compacted_topic,
        (2, "t", [("segment.bytes", SET, "1000"), ("retention.ms", SET, "long")]),
    )
    assert code == 40
    assert (
        text
        == "Invalid value long for configuration retention.ms: must be a whole number (64 bits)"
    )
    assert with_compacted_topic.controller.at_processor == before


async def test_validate_only_increments_are_not_applied(
    with_compacted_topic: Any,
) -> None:
    before = with_compacted_topic.controller.at_processor
    steps: list[Step] = [("retention.ms", SET, "6")]
    assert await alter_incrementally(with_compacted_topic, (2, "t", steps), validate_only=True) == [
        (0, None)
    ]
    assert with_compacted_topic.controller.at_processor == before

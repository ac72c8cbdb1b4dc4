"""The requests about configs: describe them, alter them, and list what can have them.

Owns the numbers of resource types, how configs are shown, and the validation of a request as a
whole; `metadata.configs` validates the settings. Invariant: a resource that a request names twice
is not changed, a response has one result per resource, in the order of the request, and the first
synonym of an entry, if there is one, is the source of its value. In Kafka: ``ConfigHelper`` and
``ConfigAdminManager``.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from minibroker.broker.apis.base import (
    Context,
    ControllerRequest,
    ControllerScope,
    Requires,
    at_controller,
    error_fields,
    without_owner,
)
from minibroker.broker.metadata.configs import (
    Alteration,
    ConfigOperation,
    Op,
    hosts_in_overrides,
    resource_config,
    resource_names,
)
from minibroker.broker.metadata.image import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    EMPTY,
    GROUP,
    TOPIC,
    ChangeRejected,
)
from minibroker.broker.metadata.topics import name_problem
from minibroker.broker.security.acl import Operation
from minibroker.broker.settings import (
    BROKER_SETTINGS,
    NODE_ID,
    TOPIC_SETTINGS,
    Scope,
    Setting,
    Settings,
    resources,
)
from minibroker.broker.settings.dynamic import Configs, DynamicConfigs, effective, layers
from minibroker.broker.settings.loggers import logger_levels
from minibroker.broker.settings.setting import (
    CLIENT_METRICS_SETTINGS,
    GROUP_SETTINGS,
    broker_setting,
)
from minibroker.broker.settings.topics import synonyms_of, topic_value
from minibroker.runtime.hosts import unresolvable
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse as IncrementalResourceResponse,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from minibroker_protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from minibroker_protocol.registry import ApiKey

# Configs as clients see them ----------------------------------------------------------------------
#
# Configs as clients see them: value, type, source and synonyms. Defines the order of precedence
# that DescribeConfigs and CreateTopics show, independently of both messages. Invariant: the first
# synonym of an entry, if there is one, is the source of its value. In Kafka: ``ConfigHelper``.


class ConfigSource(enum.IntEnum):
    """Where a value was set, with Kafka's numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigEntrySynonym(NamedTuple):
    """A setting that can determine a value, in its own unit; the value is None if sensitive."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One setting with its current value, which is None if it is unset or sensitive.

    ``name`` is the name of the setting, with the listener prefix if it was set for one listener.
    """

    name: str
    setting: Setting[Any]
    value: str | None
    source: ConfigSource
    synonyms: tuple[ConfigEntrySynonym, ...]


def topic_entries(
    settings: Settings, configs: Configs, overrides: Mapping[str, str]
) -> Iterator[ConfigEntry]:
    """Every setting of a topic with these overrides, by name.

    ``settings`` are those that the broker was started with, ``configs`` the dynamic changes.
    """
    changed = layers(settings, configs)
    settings_now = effective(settings, configs)
    for name in sorted(TOPIC_SETTINGS):
        setting = TOPIC_SETTINGS[name]
        value = setting.render(topic_value(settings_now, overrides, setting))
        synonyms = tuple(_topic_synonyms(settings, changed, setting))
        if name in overrides:
            synonyms = (ConfigEntrySynonym(name, value, ConfigSource.TOPIC), *synonyms)
        yield _entry(name, setting, value, synonyms)


def broker_entries(settings: Settings, configs: Configs) -> Iterator[ConfigEntry]:
    """Every setting of the broker, by name, and the settings of single listeners."""
    changed = layers(settings, configs)
    settings_now = effective(settings, configs)
    for name in sorted({*BROKER_SETTINGS, *settings_now.given}):
        setting = broker_setting(name)
        assert setting is not None
        value = None if setting.sensitive else settings_now.text(name)
        yield _entry(name, setting, value, tuple(_broker_synonyms(settings, changed, name)))


def default_entries(settings: Settings, configs: Configs) -> Iterator[ConfigEntry]:
    """Dynamic defaults of all brokers, by name."""
    for name, text in sorted(layers(settings, configs).default.items()):
        setting = broker_setting(name)
        assert setting is not None
        value = setting.render(setting.parse(text))
        own = ConfigEntrySynonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER)
        yield _entry(name, setting, value, (own,))


def group_entries(
    settings: Settings, configs: Configs, overrides: Mapping[str, str]
) -> Iterator[ConfigEntry]:
    """Every config of a group with these overrides; the broker's settings are the defaults."""
    changed = layers(settings, configs)
    for name, declared in GROUP_SETTINGS.items():
        if not resources.is_described(name, overrides):
            continue
        synonyms = tuple(_group_synonyms(settings, changed, declared))
        if name in overrides:
            own = ConfigEntrySynonym(name, overrides[name], ConfigSource.GROUP)
            synonyms = (own, *synonyms)
        yield _entry(name, declared, synonyms[0].value, synonyms)


def client_metrics_entries(overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Every config of client metrics with these overrides."""
    for name, declared in CLIENT_METRICS_SETTINGS.items():
        value = overrides.get(name, declared.render(declared.default))
        own = ConfigEntrySynonym(name, value, ConfigSource.CLIENT_METRICS)
        yield _entry(name, declared, value, (own,) if name in overrides else ())


def _entry(
    name: str, setting: Setting[Any], value: str | None, synonyms: tuple[ConfigEntrySynonym, ...]
) -> ConfigEntry:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
    return ConfigEntry(name, setting, value, source, synonyms)


def _topic_synonyms(
    settings: Settings, changed: DynamicConfigs, setting: Setting[Any]
) -> Iterator[ConfigEntrySynonym]:
    """Values of the broker settings that a topic falls back to, by precedence of the source."""
    found = [
        synonym
        for stand_in in synonyms_of(setting)
        for synonym in _broker_synonyms(settings, changed, stand_in.setting.name)
    ]
    # Sorting is stable: the synonyms of one source keep their order.
    yield from sorted(found, key=lambda synonym: synonym.source)


def _group_synonyms(
    settings: Settings, changed: DynamicConfigs, declared: Setting[Any]
) -> Iterator[ConfigEntrySynonym]:
    """Values of the broker setting that a group falls back to, or the default of its config."""
    stand_in = resources.stand_in(declared)
    if stand_in is not None:
        yield from _broker_synonyms(settings, changed, stand_in.name)
        return
    name = resources.broker_synonym(declared.name) or declared.name
    default = declared.render(declared.default)
    yield ConfigEntrySynonym(name, default, ConfigSource.DEFAULT)


def _broker_synonyms(
    settings: Settings, changed: DynamicConfigs, name: str
) -> Iterator[ConfigEntrySynonym]:
    setting = broker_setting(name)
    assert setting is not None
    for known in dict.fromkeys((name, setting.name)):
        yield from _sources(settings, changed, known)


def _sources(
    settings: Settings, changed: DynamicConfigs, name: str
) -> Iterator[ConfigEntrySynonym]:
    """Values of one name in each source; a name with a listener prefix has no default."""
    setting = broker_setting(name)
    assert setting is not None
    dynamic = (
        (ConfigSource.DYNAMIC_BROKER, changed.own),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER, changed.default),
    )
    for source, config in dynamic:
        if name in config:
            yield ConfigEntrySynonym(name, _shown(setting, setting.parse(config[name])), source)
    static = settings.text(name) if name in settings.given else None
    if static is not None:
        yield ConfigEntrySynonym(
            name, _shown(setting, setting.parse(static)), ConfigSource.STATIC_BROKER
        )
    default = settings.default(setting)
    if default is not None and name == setting.name:
        yield ConfigEntrySynonym(name, _shown(setting, default), ConfigSource.DEFAULT)


def _shown(setting: Setting[Any], value: object) -> str | None:
    return None if setting.sensitive else setting.render(value)


# Alterations --------------------------------------------------------------------------------------
#
# Common part of AlterConfigs and IncrementalAlterConfigs. Defines the numbers of resource types and
# validates a request as a whole; ``cluster.configs`` validates the settings. Invariant: a resource
# that a request names twice is not changed, and the response has one result per resource, in the
# order of the request. In Kafka: ``ConfigAdminManager.preprocess``.


TOPIC_TYPE: Final = 2
BROKER_TYPE: Final = 4
BROKER_LOGGER_TYPE: Final = 8
CLIENT_METRICS_TYPE: Final = 16
GROUP_TYPE: Final = 32

_KINDS: Final = {
    TOPIC_TYPE: TOPIC,
    BROKER_TYPE: BROKER,
    BROKER_LOGGER_TYPE: BROKER_LOGGER,
    CLIENT_METRICS_TYPE: CLIENT_METRICS,
    GROUP_TYPE: GROUP,
}

LEFT_OUT: Final = (
    "settings of a broker that Kafka does not have, which plug-ins would read: they are refused",
    "numbers of threads: they are processes here, and their number is that of the start",
    "alter.config.policy.class.name: a policy is a Java class",
)


class ConfigChange(NamedTuple):
    """Requested change of one resource; the type is the client's and not validated yet."""

    resource_type: int
    resource_name: str
    operations: tuple[ConfigOperation, ...]


Rejections = tuple[ChangeRejected | None, ...]
"""Error of each change or None, in the order of the request."""

Result = TypeVar("Result")


def _results(
    make: Callable[..., Result], resources: Sequence[Any], rejections: Rejections
) -> list[Result]:
    """One result per resource, in the order of the request; ``make`` is the class of a result."""
    return [
        make(
            **error_fields(rejection),
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource, rejection in zip(resources, rejections, strict=True)
    ]


async def change_configs(
    scope: ControllerScope,
    requested: tuple[ConfigChange, ...],
    *,
    replace: bool,
    validate_only: bool,
) -> Rejections:
    """Validate, store, and wait until every process has applied the changes.

    With ``replace`` they replace all configs that were set before.
    """
    rejections = _invalid_changes(requested, replace=replace)
    valid = [change for change in requested if change not in rejections]
    alterations = [
        Alteration(_KINDS[kind], name, operations, replace) for kind, name, operations in valid
    ]
    outcome = await scope.cluster.alter_configs(
        alterations,
        unresolvable=await unresolvable(hosts_in_overrides(alterations)),
        unusable_keys=scope.unusable_keys,
        validate_only=validate_only,
    )
    await scope.publish(outcome.updates)
    answers: dict[ConfigChange, ChangeRejected | None] = {
        **rejections,
        **dict(zip(valid, outcome.rejections, strict=True)),
    }
    return tuple(answers[change] for change in requested)


def _invalid_changes(
    requested: tuple[ConfigChange, ...], *, replace: bool
) -> dict[ConfigChange, ChangeRejected]:
    # Levels of loggers are changed one by one only.
    known = _KINDS.keys() - {BROKER_LOGGER_TYPE} if replace else _KINDS.keys()
    times = Counter((change.resource_type, change.resource_name) for change in requested)
    found = {}
    for change in requested:
        if times[change.resource_type, change.resource_name] > 1:
            text = "Each resource must appear at most once."
            found[change] = ChangeRejected(ErrorCode.INVALID_REQUEST, text)
        elif change.resource_type not in known:
            text = f"Unknown resource type {change.resource_type}"
            found[change] = ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    return found


# DescribeConfigs (32) -----------------------------------------------------------------------------
#
# The current configs with their sources and documentation. Versions 1-4. The resources are topics,
# this broker and its loggers, groups and client metrics, with types and documentation from version
# 3 on, and synonyms on request. The empty broker name selects the dynamic defaults of all brokers.
# Broker settings that cannot be changed dynamically are read-only. Groups and client metrics need
# not exist. In Kafka: ``ConfigHelper.describeConfigs``.


def _describe_configs(ctx: Context, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_described(ctx, request, resource) for resource in request.resources]
    )


def _described(
    ctx: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    if resource.resource_type == BROKER_LOGGER_TYPE:
        return _describe_loggers(ctx, resource, result)
    found = _entries(ctx, resource)
    if isinstance(found, ChangeRejected):
        result.error_code, result.error_message = found
        return result
    names = set(resource.configuration_keys or ())
    result.configs = [
        _described_config(entry, request) for entry in found if not names or entry.name in names
    ]
    return result


def _entries(
    ctx: Context, resource: DescribeConfigsResource
) -> Iterable[ConfigEntry] | ChangeRejected:
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC_TYPE:
        problem = name_problem(name)
        if problem is not None:
            text = f"Topic name '{name}' is invalid: {problem}."
            return ChangeRejected(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
        if name not in ctx.image.topics:
            text = f"There is no topic '{name}'."
            return ChangeRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        return topic_entries(ctx.settings, ctx.image.configs, ctx.image.topic_overrides(name))
    if kind == BROKER_TYPE:
        own = str(ctx.settings[NODE_ID])
        if name == own:
            return broker_entries(ctx.settings, ctx.image.configs)
        if not name:
            return default_entries(ctx.settings, ctx.image.configs)
        text = f"Unexpected broker id, expected {own} or empty string, but received {name}"
        return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    return _resource_entries(ctx, kind, name)


def _resource_entries(ctx: Context, kind: int, name: str) -> Iterable[ConfigEntry] | ChangeRejected:
    if kind not in (GROUP_TYPE, CLIENT_METRICS_TYPE):
        return ChangeRejected(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")
    if not name:
        return ChangeRejected(ErrorCode.INVALID_REQUEST, f"{_UNNAMED[kind]} must not be empty")
    if kind == CLIENT_METRICS_TYPE:
        return client_metrics_entries(resource_config(ctx.image, CLIENT_METRICS, name))
    overrides = resource_config(ctx.image, GROUP, name)
    return group_entries(ctx.settings, ctx.image.configs, overrides)


_UNNAMED: Final = {
    GROUP_TYPE: "Group name",
    CLIENT_METRICS_TYPE: "Client metrics subscription name",
}


def _describe_loggers(
    ctx: Context, resource: DescribeConfigsResource, result: DescribeConfigsResult
) -> DescribeConfigsResult:
    own, name = str(ctx.settings[NODE_ID]), resource.resource_name
    if name != own:
        result.error_code = ErrorCode.INVALID_REQUEST
        result.error_message = f"Unexpected broker id, expected {own} but received '{name}'"
        return result
    levels = logger_levels(ctx.image.configs.get((BROKER_LOGGER, own), EMPTY))
    wanted = set(resource.configuration_keys or levels)
    result.configs = [
        DescribeConfigsResourceResult(
            name=logger,
            value=level,
            config_source=ConfigSource.BROKER_LOGGER,
            documentation="",
        )
        for logger, level in levels.items()
        if logger in wanted
    ]
    return result


def _described_config(
    entry: ConfigEntry, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    setting = entry.setting
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=setting.scope is Scope.BROKER and not setting.dynamic,
        config_source=entry.source,
        is_sensitive=setting.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in synonyms
        ],
        config_type=setting.type.kind,
        documentation=setting.doc if request.include_documentation else None,
    )


DESCRIBE_CONFIGS = without_owner(
    _describe_configs,
    key=ApiKey.DESCRIBE_CONFIGS,
    versions=(1, 4),
    requires=(Requires(Operation.DESCRIBE_CONFIGS, Meaning.RESOURCE),),
)


# ListConfigResources (74) -------------------------------------------------------------------------
#
# Names of resources that have, or can have, configs (KIP-1142). Versions 0-1. Version 0 lists
# client metrics only; it was called ListClientMetricsResources then. From version 1 on the request
# names types: topics, brokers, their loggers, client metrics and groups, or none for all of them.
# An unknown type gets UNSUPPORTED_VERSION. Groups and client metrics are listed if something is set
# for them. In Kafka: ``KafkaApis.handleListConfigResources``.


def _configured(kind: str) -> Callable[[Context], Iterable[str]]:
    return lambda ctx: resource_names(ctx.image, kind)


def _brokers(ctx: Context) -> Iterable[str]:
    return [str(broker.broker_id) for broker, _, _ in ctx.image.brokers_at(ctx.caller.listener)]


_RESOURCE_NAMES: Final[Mapping[int, Callable[[Context], Iterable[str]]]] = {
    GROUP_TYPE: _configured(GROUP),
    CLIENT_METRICS_TYPE: _configured(CLIENT_METRICS),
    BROKER_LOGGER_TYPE: _brokers,
    BROKER_TYPE: _brokers,
    TOPIC_TYPE: lambda ctx: sorted(ctx.image.topics),
}
"""How to find the resources of each type, in Kafka's order of the types in a response."""


def _list_config_resources(
    ctx: Context, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    types = set(request.resource_types) or set(_RESOURCE_NAMES)
    if ctx.version == 0:
        types = {CLIENT_METRICS_TYPE}
    if not types <= _RESOURCE_NAMES.keys():
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind, names in _RESOURCE_NAMES.items()
            if kind in types
            for name in names(ctx)
        ]
    )


LIST_CONFIG_RESOURCES = without_owner(
    _list_config_resources,
    key=ApiKey.LIST_CONFIG_RESOURCES,
    versions=(0, 1),
    requires=(Requires(Operation.DESCRIBE_CONFIGS, Meaning.CLUSTER),),
)


# AlterConfigs (33) --------------------------------------------------------------------------------
#
# Replace all configs of a topic or a broker. Versions 0-2. Configs that the request does not name
# are reset to their defaults. Everything else is as in IncrementalAlterConfigs. In Kafka:
# ``ConfigurationControlManager.legacyAlterConfigs``.


async def _alter_configs(
    scope: ControllerScope, request: ControllerRequest[AlterConfigsRequest]
) -> AlterConfigsResponse:
    message = request.message
    changes = tuple(map(_replacement, message.resources))
    rejections = await change_configs(
        scope, changes, replace=True, validate_only=message.validate_only
    )
    return AlterConfigsResponse(
        responses=_results(AlterConfigsResourceResponse, message.resources, rejections)
    )


def _replacement(resource: AlterConfigsResource) -> ConfigChange:
    operations = (ConfigOperation(config.name, Op.SET, config.value) for config in resource.configs)
    return ConfigChange(resource.resource_type, resource.resource_name, tuple(operations))


ALTER_CONFIGS = at_controller(
    _alter_configs,
    key=ApiKey.ALTER_CONFIGS,
    versions=(0, 2),
    requires=(Requires(Operation.ALTER_CONFIGS, Meaning.RESOURCE),),
    left_out=LEFT_OUT,
)


# IncrementalAlterConfigs (44) ---------------------------------------------------------------------
#
# Set, unset, append to and subtract from single settings. Versions 0-1. The resources are topics,
# this broker or all brokers with an empty name, the loggers of this broker, groups and client
# metrics. Each resource is changed atomically and independently of the others. ``validate_only``
# changes nothing. The response is sent when every process has applied the change. In Kafka:
# ``ConfigurationControlManager.incrementalAlterConfigs``.


async def _incremental_alter_configs(
    scope: ControllerScope, request: ControllerRequest[IncrementalAlterConfigsRequest]
) -> IncrementalAlterConfigsResponse:
    message = request.message
    changes = tuple(map(_increment, message.resources))
    rejections = await change_configs(
        scope, changes, replace=False, validate_only=message.validate_only
    )
    return IncrementalAlterConfigsResponse(
        responses=_results(IncrementalResourceResponse, message.resources, rejections)
    )


def _increment(resource: IncrementalResource) -> ConfigChange:
    operations = (
        ConfigOperation(config.name, config.config_operation, config.value)
        for config in resource.configs
    )
    return ConfigChange(resource.resource_type, resource.resource_name, tuple(operations))


INCREMENTAL_ALTER_CONFIGS = at_controller(
    _incremental_alter_configs,
    key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    requires=(Requires(Operation.ALTER_CONFIGS, Meaning.RESOURCE),),
    left_out=LEFT_OUT,
)


APIS = (
    DESCRIBE_CONFIGS,
    LIST_CONFIG_RESOURCES,
    ALTER_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
)

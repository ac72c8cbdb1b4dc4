"""DescribeConfigs (32): the current configs with their sources and documentation.

Versions 1-4. The resources are topics, this broker and its loggers, groups and client metrics, with
types and documentation from version 3 on, and synonyms on request. The empty broker name selects
the dynamic defaults of all brokers. Broker settings that cannot be changed dynamically are
read-only. Groups and client metrics need not exist. In Kafka: ``ConfigHelper.describeConfigs``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from minibroker.broker.apis.base import Context, Requires, without_owner
from minibroker.broker.apis.config_alteration import (
    BROKER_LOGGER_TYPE,
    BROKER_TYPE,
    CLIENT_METRICS_TYPE,
    GROUP_TYPE,
    TOPIC_TYPE,
)
from minibroker.broker.apis.config_entries import (
    ConfigEntry,
    ConfigSource,
    broker_entries,
    client_metrics_entries,
    default_entries,
    group_entries,
    topic_entries,
)
from minibroker.broker.metadata.configs import resource_config
from minibroker.broker.metadata.image import (
    BROKER_LOGGER,
    CLIENT_METRICS,
    EMPTY,
    GROUP,
    ChangeRejected,
)
from minibroker.broker.metadata.topics import name_problem
from minibroker.broker.security.acl import Operation
from minibroker.broker.settings import Scope
from minibroker.broker.settings.definitions import NODE_ID
from minibroker.broker.settings.loggers import logger_levels
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from minibroker_protocol.registry import ApiKey


def answer(ctx: Context, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Describe each resource independently."""
    return DescribeConfigsResponse(
        results=[_describe(ctx, request, resource) for resource in request.resources]
    )


def _describe(
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
        _config(entry, request) for entry in found if not names or entry.name in names
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


def _config(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
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


API = without_owner(
    answer,
    key=ApiKey.DESCRIBE_CONFIGS,
    versions=(1, 4),
    requires=(Requires(Operation.DESCRIBE_CONFIGS, Meaning.RESOURCE),),
)

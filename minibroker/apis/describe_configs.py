"""DescribeConfigs (32): the current configs with their sources and documentation.

Versions 1-4. The resources are topics and this broker, with types and documentation from version 3
on, and synonyms on request. The empty broker name selects the dynamic defaults of all brokers.
Broker settings that cannot be changed dynamically are read-only. In Kafka:
``ConfigHelper.describeConfigs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minibroker.apis.base import Api, Context, Owner
from minibroker.apis.config_alteration import BROKER_TYPE, TOPIC_TYPE
from minibroker.apis.config_entries import (
    ConfigEntry,
    broker_entries,
    default_entries,
    topic_entries,
)
from minibroker.cluster.topics import ChangeRejected, name_problem
from minibroker.config import NODE_ID, Scope
from protocol.errors import ErrorCode
from protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from protocol.registry import ApiKey


def split(_ctx: Context, _request: DescribeConfigsRequest) -> Mapping[Owner, None]:
    """No owner is involved: every process has the image."""
    return {}


def merge(
    ctx: Context, request: DescribeConfigsRequest, _replies: Mapping[Owner, None]
) -> DescribeConfigsResponse:
    """Describe each resource independently."""
    return DescribeConfigsResponse(
        results=[_describe(ctx, request, resource) for resource in request.resources]
    )


def _describe(
    ctx: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    found = _entries(ctx, resource)
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
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
    text = f"Resources of type {kind} are not served; "
    text += f"topics ({TOPIC_TYPE}) and brokers ({BROKER_TYPE}) are."
    return ChangeRejected(ErrorCode.INVALID_REQUEST, text)


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


API: Api[DescribeConfigsRequest, None, None, DescribeConfigsResponse] = Api(
    key=ApiKey.DESCRIBE_CONFIGS,
    versions=(1, 4),
    split=split,
    merge=merge,
    left_out=(
        "loggers, client metrics and groups: this broker has no such configs, so they are refused",
    ),
)

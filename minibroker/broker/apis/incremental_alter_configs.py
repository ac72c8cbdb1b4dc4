"""IncrementalAlterConfigs (44): set, unset, append to and subtract from single settings.

Versions 0-1. The resources are topics, this broker or all brokers with an empty name, the loggers
of this broker, groups and client metrics. Each resource is changed atomically and independently of
the others. ``validate_only`` changes nothing. The response is sent when every process has applied
the change. In Kafka:
``ConfigurationControlManager.incrementalAlterConfigs``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.apis.base import CONTROLLER, Api, Context, Owner
from minibroker.broker.apis.config_alteration import (
    LEFT_OUT,
    AlterConfigsPart,
    AlterConfigsReply,
    ConfigChange,
    answers,
    execute_at_controller,
)
from minibroker.broker.metadata.configs import ConfigOperation
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from minibroker_protocol.registry import ApiKey


def split(
    _ctx: Context, request: IncrementalAlterConfigsRequest
) -> Mapping[Owner, AlterConfigsPart]:
    """Send everything to the controller."""
    requested = tuple(map(_requested_change, request.resources))
    return {
        CONTROLLER: AlterConfigsPart(requested, replace=False, validate_only=request.validate_only)
    }


def _requested_change(resource: AlterConfigsResource) -> ConfigChange:
    operations = (
        ConfigOperation(config.name, config.config_operation, config.value)
        for config in resource.configs
    )
    return ConfigChange(resource.resource_type, resource.resource_name, tuple(operations))


def merge(
    _ctx: Context,
    request: IncrementalAlterConfigsRequest,
    replies: Mapping[Owner, AlterConfigsReply],
) -> IncrementalAlterConfigsResponse:
    """One result per resource, in the order of the request."""
    return IncrementalAlterConfigsResponse(
        responses=answers(AlterConfigsResourceResponse, request.resources, replies[CONTROLLER])
    )


API: Api[
    IncrementalAlterConfigsRequest,
    AlterConfigsPart,
    AlterConfigsReply,
    IncrementalAlterConfigsResponse,
] = Api(
    key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
    left_out=LEFT_OUT,
)

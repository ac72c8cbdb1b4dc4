"""IncrementalAlterConfigs (44): set, unset, append to and subtract from single settings.

Versions 0-1. The resources are topics, this broker or all brokers with an empty name, the loggers
of this broker, groups and client metrics. Each resource is changed atomically and independently of
the others. ``validate_only`` changes nothing. The response is sent when every process has applied
the change. In Kafka:
``ConfigurationControlManager.incrementalAlterConfigs``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import ControllerRequest, ControllerScope, Requires, at_controller
from minibroker.broker.apis.config_alteration import (
    LEFT_OUT,
    ConfigChange,
    alter_configs,
    results,
)
from minibroker.broker.metadata.configs import ConfigOperation
from minibroker.broker.security.acl import Operation
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from minibroker_protocol.registry import ApiKey


async def execute(
    scope: ControllerScope, request: ControllerRequest[IncrementalAlterConfigsRequest]
) -> IncrementalAlterConfigsResponse:
    """One result per resource, in the order of the request."""
    message = request.message
    changes = tuple(map(_requested_change, message.resources))
    rejections = await alter_configs(
        scope, changes, replace=False, validate_only=message.validate_only
    )
    return IncrementalAlterConfigsResponse(
        responses=results(AlterConfigsResourceResponse, message.resources, rejections)
    )


def _requested_change(resource: AlterConfigsResource) -> ConfigChange:
    operations = (
        ConfigOperation(config.name, config.config_operation, config.value)
        for config in resource.configs
    )
    return ConfigChange(resource.resource_type, resource.resource_name, tuple(operations))


API = at_controller(
    execute,
    key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    requires=(Requires(Operation.ALTER_CONFIGS, Meaning.RESOURCE),),
    left_out=LEFT_OUT,
)

"""AlterConfigs (33): replace all configs of a topic or a broker.

Versions 0-2. Configs that the request does not name are reset to their defaults. Everything else is
as in IncrementalAlterConfigs. In Kafka: ``ConfigurationControlManager.legacyAlterConfigs``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import ControllerRequest, ControllerScope, Requires, at_controller
from minibroker.broker.apis.config_alteration import (
    LEFT_OUT,
    ConfigChange,
    alter_configs,
    results,
)
from minibroker.broker.metadata.configs import ConfigOperation, Op
from minibroker.broker.security.acl import Operation
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from minibroker_protocol.registry import ApiKey


async def execute(
    scope: ControllerScope, request: ControllerRequest[AlterConfigsRequest]
) -> AlterConfigsResponse:
    """One result per resource, in the order of the request."""
    message = request.message
    changes = tuple(map(_requested_change, message.resources))
    rejections = await alter_configs(
        scope, changes, replace=True, validate_only=message.validate_only
    )
    return AlterConfigsResponse(
        responses=results(AlterConfigsResourceResponse, message.resources, rejections)
    )


def _requested_change(resource: AlterConfigsResource) -> ConfigChange:
    operations = (ConfigOperation(config.name, Op.SET, config.value) for config in resource.configs)
    return ConfigChange(resource.resource_type, resource.resource_name, tuple(operations))


API = at_controller(
    execute,
    key=ApiKey.ALTER_CONFIGS,
    versions=(0, 2),
    requires=(Requires(Operation.ALTER_CONFIGS, Meaning.RESOURCE),),
    left_out=LEFT_OUT,
)

"""AlterConfigs (33): replace all configs of a topic or a broker.

Versions 0-2. Configs that the request does not name are reset to their defaults. Everything else is
as in IncrementalAlterConfigs. In Kafka: ``ConfigurationControlManager.legacyAlterConfigs``.
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
from minibroker.broker.metadata.configs import ConfigOperation, Op
from minibroker_protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from minibroker_protocol.registry import ApiKey


def split(_ctx: Context, request: AlterConfigsRequest) -> Mapping[Owner, AlterConfigsPart]:
    """Send everything to the controller."""
    requested = tuple(map(_requested_change, request.resources))
    return {
        CONTROLLER: AlterConfigsPart(requested, replace=True, validate_only=request.validate_only)
    }


def _requested_change(resource: AlterConfigsResource) -> ConfigChange:
    operations = (ConfigOperation(config.name, Op.SET, config.value) for config in resource.configs)
    return ConfigChange(resource.resource_type, resource.resource_name, tuple(operations))


def merge(
    _ctx: Context, request: AlterConfigsRequest, replies: Mapping[Owner, AlterConfigsReply]
) -> AlterConfigsResponse:
    """One result per resource, in the order of the request."""
    return AlterConfigsResponse(
        responses=answers(AlterConfigsResourceResponse, request.resources, replies[CONTROLLER])
    )


API: Api[AlterConfigsRequest, AlterConfigsPart, AlterConfigsReply, AlterConfigsResponse] = Api(
    key=ApiKey.ALTER_CONFIGS,
    versions=(0, 2),
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
    left_out=LEFT_OUT,
)

"""ListConfigResources (74): names of resources that have, or can have, configs (KIP-1142).

Versions 0-1. Version 0 lists client metrics only; it was called ListClientMetricsResources then.
From version 1 on the request names types: topics, brokers, their loggers, client metrics and
groups, or none for all of them. An unknown type gets UNSUPPORTED_VERSION. Groups and client metrics
are listed if something is set for them. In Kafka: ``KafkaApis.handleListConfigResources``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from minibroker.broker.apis.base import Context, Requires, without_owner
from minibroker.broker.apis.config_alteration import (
    BROKER_LOGGER_TYPE,
    BROKER_TYPE,
    CLIENT_METRICS_TYPE,
    GROUP_TYPE,
    TOPIC_TYPE,
)
from minibroker.broker.metadata.configs import resource_names
from minibroker.broker.metadata.image import CLIENT_METRICS, GROUP
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from minibroker_protocol.registry import ApiKey


def _configured(kind: str) -> Callable[[Context], Iterable[str]]:
    return lambda ctx: resource_names(ctx.image, kind)


def _brokers(ctx: Context) -> Iterable[str]:
    return [str(broker.broker_id) for broker, _, _ in ctx.image.brokers_at(ctx.caller.listener)]


_NAMES: Final[Mapping[int, Callable[[Context], Iterable[str]]]] = {
    GROUP_TYPE: _configured(GROUP),
    CLIENT_METRICS_TYPE: _configured(CLIENT_METRICS),
    BROKER_LOGGER_TYPE: _brokers,
    BROKER_TYPE: _brokers,
    TOPIC_TYPE: lambda ctx: sorted(ctx.image.topics),
}
"""How to find the resources of each type, in Kafka's order of the types in a response."""


def answer(ctx: Context, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """List the resources of the requested types."""
    types = set(request.resource_types) or set(_NAMES)
    if ctx.version == 0:
        types = {CLIENT_METRICS_TYPE}
    if not types <= _NAMES.keys():
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind, names in _NAMES.items()
            if kind in types
            for name in names(ctx)
        ]
    )


API = without_owner(
    answer,
    key=ApiKey.LIST_CONFIG_RESOURCES,
    versions=(0, 1),
    requires=(Requires(Operation.DESCRIBE_CONFIGS, Meaning.CLUSTER),),
)

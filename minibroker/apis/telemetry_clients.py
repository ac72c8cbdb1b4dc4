"""Common part of the two requests of client telemetry (KIP-714).

Reads what subscriptions can select a client by. Invariant: a client is known by the properties of
the connection that it asks with. In Kafka: ``ClientMetricsInstanceMetadata``.
"""

from __future__ import annotations

from minibroker.apis.base import Context, ControllerScope
from minibroker.cluster.image import CLIENT_METRICS
from minibroker.telemetry.instances import ClientInstances
from minibroker.telemetry.subscriptions import TelemetryProperties
from protocol.types import Uuid, uuid_text


def client_properties(ctx: Context, instance_id: Uuid) -> TelemetryProperties:
    """The properties of the caller."""
    caller = ctx.caller
    name, version = caller.software
    return TelemetryProperties(
        client_instance_id=uuid_text(instance_id),
        client_id=ctx.header.client_id or "",
        client_software_name=name,
        client_software_version=version,
        client_source_address=caller.client_host,
        client_source_port=str(caller.client_port),
    )


def current_instances(scope: ControllerScope) -> ClientInstances:
    """The client instances, with the present subscriptions."""
    configs = (
        config for (kind, _), config in scope.image.configs.items() if kind == CLIENT_METRICS
    )
    scope.telemetry.follow(configs)
    return scope.telemetry

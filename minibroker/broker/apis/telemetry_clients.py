"""Common part of the two requests of client telemetry (KIP-714).

Reads what subscriptions can select a client by. Invariant: a client is known by the properties of
the connection that it asks with. In Kafka: ``ClientMetricsInstanceMetadata``.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from minibroker.broker.apis.base import Caller, ControllerScope
from minibroker.broker.metadata.image import CLIENT_METRICS
from minibroker.broker.telemetry.instances import ClientInstances
from minibroker.broker.telemetry.subscriptions import TelemetryProperties, select
from minibroker_protocol.types import Uuid, uuid_text


class TelemetryClient(NamedTuple):
    """The client that asks or pushes, and when."""

    instance_id: Uuid
    properties: TelemetryProperties
    now_ms: int


def client_properties(caller: Caller, client_id: str, instance_id: Uuid) -> TelemetryProperties:
    """The properties of the caller."""
    name, version = caller.software
    return TelemetryProperties(
        client_instance_id=uuid_text(instance_id),
        client_id=client_id,
        client_software_name=name,
        client_software_version=version,
        client_source_address=caller.client_host,
        client_source_port=str(caller.client_port),
    )


async def instances_with(scope: ControllerScope, client: TelemetryClient) -> ClientInstances:
    """The client instances, of which the client is one.

    A new client is compared with the patterns of all subscriptions in a thread.
    """
    instances = current_instances(scope)
    if not instances.has_current(client.instance_id):
        subscriptions = instances.subscriptions
        work = partial(select, subscriptions, client.properties)
        selection = await scope.run_in_thread(work) if subscriptions else work()
        instances.add(
            client.instance_id, client.properties, subscriptions, selection, client.now_ms
        )
    return instances


def current_instances(scope: ControllerScope) -> ClientInstances:
    """The client instances, with the present subscriptions."""
    configs = (
        config for (kind, _), config in scope.image.configs.items() if kind == CLIENT_METRICS
    )
    scope.telemetry.follow(configs)
    return scope.telemetry

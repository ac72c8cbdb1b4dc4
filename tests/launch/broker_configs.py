"""Changes dynamic configs of a running broker."""

from __future__ import annotations

from minibroker.client.errors import BrokerError
from minibroker.client.kafka_client import BROKER, KafkaClient
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def alter(client: KafkaClient, name: str, value: str) -> None:
    """Set a config of broker 1. Raises `BrokerError`."""
    configs = [AlterableConfig(name=name, value=value)]
    resource = AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    [result] = client.send(request, IncrementalAlterConfigsResponse).responses
    if result.error_code:
        raise BrokerError(f"{name}={value}", result.error_code, result.error_message)

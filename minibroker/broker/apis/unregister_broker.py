"""UnregisterBroker (64): remove the registration of a broker from the cluster (KIP-919).

Version 0. An unknown id gets BROKER_ID_NOT_REGISTERED. This broker stays registered while it runs,
so its own id gets INVALID_REQUEST; Kafka would remove the registration and not add it again. In
Kafka: ``ClusterControlManager`` and ``QuorumController.unregisterBroker``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import CLUSTER_DENIED_TEXT, Context, Requires, without_owner
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from minibroker_protocol.registry import ApiKey


def answer(ctx: Context, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    """The error for this id."""
    broker_id = request.broker_id
    if broker_id not in ctx.image.brokers:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
            error_message=f"Broker ID {broker_id} is not currently registered",
        )
    return UnregisterBrokerResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=f"Broker ID {broker_id} is in use: stop the broker instead",
    )


API = without_owner(
    answer,
    key=ApiKey.UNREGISTER_BROKER,
    versions=(0, 0),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
    left_out=("removing the only broker: it is registered as long as it runs",),
)

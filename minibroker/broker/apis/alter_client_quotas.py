"""AlterClientQuotas (49): set and remove quotas, independently for each entity.

Versions 0-1. Users, client-ids, pairs of both and the defaults of each have byte rates,
``request_percentage`` and ``controller_mutation_rate``. IP addresses, which may be given as host
names, and their default have ``connection_creation_rate``; 0 rejects every connection. With
``validate_only`` nothing is changed. The response is sent when every process has applied the
quotas. In Kafka: ``ClientQuotaControlManager.alterClientQuotas``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import (
    CLUSTER_DENIED_TEXT,
    ControllerRequest,
    ControllerScope,
    Requires,
    at_controller,
)
from minibroker.broker.metadata.quotas import IP_TYPE, QuotaChange
from minibroker.broker.security.acl import Operation
from minibroker.runtime.hosts import unresolvable
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
)
from minibroker_protocol.registry import ApiKey


async def execute(
    scope: ControllerScope, request: ControllerRequest[AlterClientQuotasRequest]
) -> AlterClientQuotasResponse:
    """Resolve host names, validate, store, and wait until every process applied the quotas."""
    message = request.message
    changes = tuple(map(_change, message.entries))
    names = {
        name
        for change in changes
        for entity_type, name in change.entity
        if entity_type == IP_TYPE and name
    }
    outcome = await scope.cluster.alter_quotas(
        changes, unresolvable=await unresolvable(names), validate_only=message.validate_only
    )
    await scope.publish(outcome.updates)
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponseEntryData(
                error_code=rejection.code if rejection else ErrorCode.NONE,
                error_message=rejection.text if rejection else None,
                entity=entry.entity,
            )
            for entry, rejection in zip(message.entries, outcome.rejections, strict=True)
        ]
    )


def _change(entry: AlterClientQuotasRequestEntryData) -> QuotaChange:
    return QuotaChange(
        tuple((part.entity_type, part.entity_name) for part in entry.entity),
        tuple((op.key, None if op.remove else op.value) for op in entry.ops),
    )


API = at_controller(
    execute,
    key=ApiKey.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    requires=(Requires(Operation.ALTER_CONFIGS, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
)

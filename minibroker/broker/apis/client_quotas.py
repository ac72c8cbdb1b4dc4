"""The requests about client quotas: describe and alter them.

Converts messages to the records of `metadata.quotas`, which has the rules. Invariant: an invalid
filter gets one error, and an invalid change an error of its own.
"""

from __future__ import annotations

from minibroker.broker.apis.base import (
    CLUSTER_DENIED_TEXT,
    Context,
    ControllerRequest,
    ControllerScope,
    Requires,
    at_controller,
    error_fields,
    without_owner,
)
from minibroker.broker.metadata.quotas import IP_TYPE, Component, QuotaChange, filter_problem, find
from minibroker.broker.security.acl import Operation
from minibroker.runtime.hosts import unresolvable
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
)
from minibroker_protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from minibroker_protocol.registry import ApiKey

# DescribeClientQuotas (48) ------------------------------------------------------------------------
#
# List the quotas of the entities that match a filter. Versions 0-1. Entities are users, client-ids,
# pairs of both, IP addresses and the defaults of each. A filter selects an exact name, the default,
# or all entities with a quota; a strict filter matches only entities of exactly its types. An
# invalid filter gets one error and no entries. In Kafka: ``ClientQuotasImage.describe``.


def _describe_client_quotas(
    ctx: Context, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """List the matching entities by name."""
    components = [
        Component(component.entity_type, component.match_type, component.match)
        for component in request.components
    ]
    rejection = filter_problem(components)
    if rejection is not None:
        return DescribeClientQuotasResponse(
            error_code=rejection.code, error_message=rejection.text, entries=None
        )
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            EntryData(
                entity=[
                    EntityData(entity_type=kind, entity_name=name) for kind, name in names.items()
                ],
                values=[ValueData(key=key, value=value) for key, value in quotas.items()],
            )
            for names, quotas in find(ctx.image, components, strict=request.strict)
        ],
    )


DESCRIBE_CLIENT_QUOTAS = without_owner(
    _describe_client_quotas,
    key=ApiKey.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    requires=(Requires(Operation.DESCRIBE_CONFIGS, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
)


# AlterClientQuotas (49) ---------------------------------------------------------------------------
#
# Set and remove quotas, independently for each entity. Versions 0-1. Users, client-ids, pairs of
# both and the defaults of each have byte rates, ``request_percentage`` and
# ``controller_mutation_rate``. IP addresses, which may be given as host names, and their default
# have ``connection_creation_rate``; 0 rejects every connection. With ``validate_only`` nothing is
# changed. The response is sent when every process has applied the quotas. In Kafka:
# ``ClientQuotaControlManager.alterClientQuotas``.


async def _alter_client_quotas(
    scope: ControllerScope, request: ControllerRequest[AlterClientQuotasRequest]
) -> AlterClientQuotasResponse:
    """Resolve host names, validate, store, and wait until every process applied the quotas."""
    message = request.message
    changes = tuple(map(_quota_change, message.entries))
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
                **error_fields(rejection),
                entity=entry.entity,
            )
            for entry, rejection in zip(message.entries, outcome.rejections, strict=True)
        ]
    )


def _quota_change(entry: AlterClientQuotasRequestEntryData) -> QuotaChange:
    return QuotaChange(
        tuple((part.entity_type, part.entity_name) for part in entry.entity),
        tuple((op.key, None if op.remove else op.value) for op in entry.ops),
    )


ALTER_CLIENT_QUOTAS = at_controller(
    _alter_client_quotas,
    key=ApiKey.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    requires=(Requires(Operation.ALTER_CONFIGS, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
)


APIS = (
    DESCRIBE_CLIENT_QUOTAS,
    ALTER_CLIENT_QUOTAS,
)

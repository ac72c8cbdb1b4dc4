"""AlterClientQuotas (49): set and remove quotas, independently for each entity.

Versions 0-1. Users, client-ids, pairs of both and the defaults of each have byte rates,
``request_percentage`` and ``controller_mutation_rate``. IP addresses, which may be given as host
names, and their default have ``connection_creation_rate``; 0 rejects every connection. With
``validate_only`` nothing is changed. The response is sent when every process has applied the
quotas. In Kafka: ``ClientQuotaControlManager.alterClientQuotas``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.broker.apis.base import CONTROLLER, Api, Context, ControllerScope, Owner
from minibroker.broker.metadata.image import ChangeRejected
from minibroker.broker.metadata.quotas import IP_TYPE, QuotaChange
from minibroker.runtime.hosts import unresolvable
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
)
from minibroker_protocol.registry import ApiKey


class AlterClientQuotasPart(NamedTuple):
    """Requested quota changes."""

    changes: tuple[QuotaChange, ...]
    validate_only: bool


AlterClientQuotasReply = tuple[ChangeRejected | None, ...]


def split(
    _ctx: Context, request: AlterClientQuotasRequest
) -> Mapping[Owner, AlterClientQuotasPart]:
    """Send everything to the controller."""
    return {
        CONTROLLER: AlterClientQuotasPart(
            tuple(map(_change, request.entries)), request.validate_only
        )
    }


def _change(entry: AlterClientQuotasRequestEntryData) -> QuotaChange:
    return QuotaChange(
        tuple((part.entity_type, part.entity_name) for part in entry.entity),
        tuple((op.key, None if op.remove else op.value) for op in entry.ops),
    )


async def execute_at_controller(
    scope: ControllerScope, part: AlterClientQuotasPart
) -> AlterClientQuotasReply:
    """Resolve host names, validate, store, and wait until every process applied the quotas."""
    names = {
        name
        for change in part.changes
        for entity_type, name in change.entity
        if entity_type == IP_TYPE and name
    }
    outcome = await scope.cluster.alter_quotas(
        part.changes,
        unresolvable=await unresolvable(names),
        validate_only=part.validate_only,
    )
    await scope.publish(outcome.updates)
    return outcome.rejections


def merge(
    _ctx: Context,
    request: AlterClientQuotasRequest,
    replies: Mapping[Owner, AlterClientQuotasReply],
) -> AlterClientQuotasResponse:
    """One result per entry, in the order of the request."""
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponseEntryData(
                error_code=rejection.code if rejection else ErrorCode.NONE,
                error_message=rejection.text if rejection else None,
                entity=entry.entity,
            )
            for entry, rejection in zip(request.entries, replies[CONTROLLER], strict=True)
        ]
    )


API: Api[
    AlterClientQuotasRequest,
    AlterClientQuotasPart,
    AlterClientQuotasReply,
    AlterClientQuotasResponse,
] = Api(
    key=ApiKey.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
)

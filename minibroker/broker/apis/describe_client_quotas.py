"""DescribeClientQuotas (48): list the quotas of the entities that match a filter.

Versions 0-1. Entities are users, client-ids, pairs of both, IP addresses and the defaults of each.
A filter selects an exact name, the default, or all entities with a quota; a strict filter matches
only entities of exactly its types. An invalid filter gets one error and no entries. In Kafka:
``ClientQuotasImage.describe``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import CLUSTER_DENIED_TEXT, Context, Requires, without_owner
from minibroker.broker.metadata.quotas import Component, filter_problem, find
from minibroker.broker.security.acl import Operation
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from minibroker_protocol.registry import ApiKey


def answer(ctx: Context, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
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


API = without_owner(
    answer,
    key=ApiKey.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    requires=(Requires(Operation.DESCRIBE_CONFIGS, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
)

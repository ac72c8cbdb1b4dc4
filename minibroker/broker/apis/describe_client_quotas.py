"""DescribeClientQuotas (48): list the quotas of the entities that match a filter.

Versions 0-1. Entities are users, client-ids, pairs of both, IP addresses and the defaults of each.
A filter selects an exact name, the default, or all entities with a quota; a strict filter matches
only entities of exactly its types. An invalid filter gets one error and no entries. In Kafka:
``ClientQuotasImage.describe``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.apis.base import Api, Context, Owner
from minibroker.broker.metadata.quotas import Component, filter_problem, find
from minibroker_protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from minibroker_protocol.registry import ApiKey


def split(_ctx: Context, _request: DescribeClientQuotasRequest) -> Mapping[Owner, None]:
    """No owner is involved: every process has the image."""
    return {}


def merge(
    ctx: Context, request: DescribeClientQuotasRequest, _replies: Mapping[Owner, None]
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


API: Api[DescribeClientQuotasRequest, None, None, DescribeClientQuotasResponse] = Api(
    key=ApiKey.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    split=split,
    merge=merge,
)

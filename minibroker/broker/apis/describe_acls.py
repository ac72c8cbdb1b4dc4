"""DescribeAcls (29): list the ACLs that match a filter.

Versions 1-3. All parts of the filter must match; the pattern type MATCH selects every pattern that
applies to a resource of the name. Without an authorizer the error is SECURITY_DISABLED. In Kafka:
``AclApis.handleDescribeAcls``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.apis.acl_filters import DISABLED, as_filter
from minibroker.broker.apis.base import Api, Context, Owner
from minibroker.broker.metadata.acls import check_search, find
from minibroker.broker.security.acl import Pattern
from minibroker_protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from minibroker_protocol.registry import ApiKey


def split(_ctx: Context, _request: DescribeAclsRequest) -> Mapping[Owner, None]:
    """No owner is involved: every process has the image."""
    return {}


def merge(
    ctx: Context, request: DescribeAclsRequest, _replies: Mapping[Owner, None]
) -> DescribeAclsResponse:
    """List the matching ACLs by resource pattern."""
    acl_filter = as_filter(request, request.resource_type_filter)
    rejection = DISABLED if ctx.authorizer is None else check_search(acl_filter)
    if rejection is not None:
        return DescribeAclsResponse(error_code=rejection.code, error_message=rejection.text)
    found: dict[Pattern, list[AclDescription]] = {}
    for pattern, rule in find(ctx.image.acls, acl_filter):
        description = AclDescription(
            principal=rule.principal,
            host=rule.host,
            operation=rule.operation,
            permission_type=rule.permission,
        )
        found.setdefault(pattern, []).append(description)
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            DescribeAclsResource(
                resource_type=pattern.resource,
                resource_name=pattern.name,
                pattern_type=pattern.type,
                acls=rules,
            )
            for pattern, rules in found.items()
        ],
    )


API: Api[DescribeAclsRequest, None, None, DescribeAclsResponse] = Api(
    key=ApiKey.DESCRIBE_ACLS, versions=(1, 3), split=split, merge=merge
)

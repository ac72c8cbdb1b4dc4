"""DescribeAcls (29): find access rules.

Versions 1-3.  All parts of the filter must match; a pattern type of MATCH finds every pattern that
a resource of the name falls under.  Without an authorizer SECURITY_DISABLED says that rules would
have no effect.  Echoes ``AclApis.handleDescribeAcls``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.apis.acl_filters import DISABLED, as_filter
from minibroker.apis.base import Api, Context, Owner
from minibroker.cluster.acls import check_search, find
from minibroker.security.acl import Pattern
from protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from protocol.registry import ApiKey


def split(_ctx: Context, _request: DescribeAclsRequest) -> Mapping[Owner, None]:
    """Nobody needs to be asked: the rules are at hand everywhere."""
    return {}


def merge(
    ctx: Context, request: DescribeAclsRequest, _replies: Mapping[Owner, None]
) -> DescribeAclsResponse:
    """The rules that are found, by pattern."""
    wanted = as_filter(request, request.resource_type_filter)
    refusal = DISABLED if ctx.authorizer is None else check_search(wanted)
    if refusal is not None:
        return DescribeAclsResponse(error_code=refusal.code, error_message=refusal.text)
    found: dict[Pattern, list[AclDescription]] = {}
    for pattern, rule in find(ctx.image.acls, wanted):
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

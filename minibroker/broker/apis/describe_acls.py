"""DescribeAcls (29): list the ACLs that match a filter.

Versions 1-3. All parts of the filter must match; the pattern type MATCH selects every pattern that
applies to a resource of the name. Without an authorizer the error is SECURITY_DISABLED. In Kafka:
``AclApis.handleDescribeAcls``.
"""

from __future__ import annotations

from minibroker.broker.apis.acl_filters import DISABLED, as_filter
from minibroker.broker.apis.base import CLUSTER_DENIED_TEXT, Context, Requires, without_owner
from minibroker.broker.metadata.acls import check_search, find
from minibroker.broker.security.acl import Operation, Pattern
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from minibroker_protocol.registry import ApiKey


def answer(ctx: Context, request: DescribeAclsRequest) -> DescribeAclsResponse:
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


API = without_owner(
    answer,
    key=ApiKey.DESCRIBE_ACLS,
    versions=(1, 3),
    requires=(Requires(Operation.DESCRIBE, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
)

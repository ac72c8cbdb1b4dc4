"""DeleteAcls (31): remove the ACLs that match filters, independently for each filter.

Versions 1-3. A removed ACL is listed under every filter that matches it. The response is sent when
every process has applied the change. Without an authorizer the error is SECURITY_DISABLED. In
Kafka: ``AclApis.handleDeleteAcls``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.apis.acl_filters import DISABLED, as_filter
from minibroker.broker.apis.base import CONTROLLER, Api, Context, ControllerScope, Owner
from minibroker.broker.metadata.acls import Filter, MatchingAcls
from minibroker.broker.metadata.image import ChangeRejected
from minibroker_protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from minibroker_protocol.registry import ApiKey

Part = tuple[Filter, ...]
Reply = list[MatchingAcls | ChangeRejected]


def split(ctx: Context, request: DeleteAclsRequest) -> Mapping[Owner, Part]:
    """Send everything to the controller."""
    if ctx.authorizer is None:
        return {}
    return {
        CONTROLLER: tuple(
            as_filter(filter_, filter_.resource_type_filter) for filter_ in request.filters
        )
    }


async def execute_at_controller(scope: ControllerScope, part: Part) -> Reply:
    """Find and remove the ACLs, and wait until every process has applied the change."""
    answers, updates = await scope.cluster.delete_acls(part)
    await scope.publish(updates)
    return answers


def merge(
    _ctx: Context, request: DeleteAclsRequest, replies: Mapping[Owner, Reply]
) -> DeleteAclsResponse:
    """One result per filter, in the order of the request."""
    disabled: Reply = [DISABLED] * len(request.filters)
    return DeleteAclsResponse(filter_results=list(map(_result, replies.get(CONTROLLER, disabled))))


def _result(found: MatchingAcls | ChangeRejected) -> DeleteAclsFilterResult:
    if isinstance(found, ChangeRejected):
        return DeleteAclsFilterResult(error_code=found.code, error_message=found.text)
    return DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=pattern.resource,
                resource_name=pattern.name,
                pattern_type=pattern.type,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for pattern, rule in found
        ],
    )


API: Api[DeleteAclsRequest, Part, Reply, DeleteAclsResponse] = Api(
    key=ApiKey.DELETE_ACLS,
    versions=(1, 3),
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
)

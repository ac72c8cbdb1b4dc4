"""DeleteAcls (31): remove the ACLs that match filters, independently for each filter.

Versions 1-3. A removed ACL is listed under every filter that matches it. The response is sent when
every process has applied the change. Without an authorizer the error is SECURITY_DISABLED. In
Kafka: ``AclApis.handleDeleteAcls``.
"""

from __future__ import annotations

from minibroker.broker.apis.acl_filters import DISABLED, as_filter
from minibroker.broker.apis.base import (
    CLUSTER_DENIED_TEXT,
    Context,
    ControllerRequest,
    ControllerScope,
    Requires,
    at_controller,
)
from minibroker.broker.metadata.acls import MatchingAcls
from minibroker.broker.metadata.image import ChangeRejected
from minibroker.broker.security.acl import Operation
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from minibroker_protocol.registry import ApiKey


async def execute(
    scope: ControllerScope, request: ControllerRequest[DeleteAclsRequest]
) -> DeleteAclsResponse:
    """Find and remove the ACLs, and wait until every process has applied the change.

    There is one result per filter, in the order of the request.
    """
    filters = tuple(as_filter(each, each.resource_type_filter) for each in request.message.filters)
    found, updates = await scope.cluster.delete_acls(filters)
    await scope.publish(updates)
    return DeleteAclsResponse(filter_results=list(map(_result, found)))


def reject(ctx: Context, request: DeleteAclsRequest) -> DeleteAclsResponse | None:
    """SECURITY_DISABLED for each filter if there is no authorizer."""
    if ctx.authorizer is not None:
        return None
    return DeleteAclsResponse(filter_results=[_result(DISABLED) for _ in request.filters])


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


API = at_controller(
    execute,
    key=ApiKey.DELETE_ACLS,
    versions=(1, 3),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
    reject=reject,
)

"""The requests about ACLs: create, describe and delete them.

Converts messages to the records of `metadata.acls`, which has the rules. Invariant: a null in a
filter matches anything, and without an authorizer each request gets SECURITY_DISABLED. In Kafka:
``AclApis``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
from minibroker.broker.metadata.acls import Binding, MatchingAcls, as_filter, check_search, find
from minibroker.broker.metadata.image import ChangeRejected
from minibroker.broker.security.acl import Operation, Pattern
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from minibroker_protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from minibroker_protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from minibroker_protocol.registry import ApiKey

DISABLED: Final = ChangeRejected(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


# CreateAcls (30) ----------------------------------------------------------------------------------
#
# Add ACLs, independently of each other. Versions 1-3. Adding an existing ACL succeeds without a
# change. The response is sent when every process has applied the ACLs. Without an authorizer the
# error is SECURITY_DISABLED. In Kafka: ``AclApis.handleCreateAcls``.


async def _create_acls(
    scope: ControllerScope, request: ControllerRequest[CreateAclsRequest]
) -> CreateAclsResponse:
    """Validate, store, and wait until every process has applied the change.

    There is one result per rule, in the order of the request.
    """
    creations = request.message.creations
    rejections, updates = await scope.cluster.create_acls(tuple(map(_binding, creations)))
    await scope.publish(updates)
    return _creation_results(rejections)


def _reject_creations(ctx: Context, request: CreateAclsRequest) -> CreateAclsResponse | None:
    """SECURITY_DISABLED for each rule if there is no authorizer."""
    if ctx.authorizer is not None:
        return None
    return _creation_results([DISABLED] * len(request.creations))


def _creation_results(rejections: Iterable[ChangeRejected | None]) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[
            AclCreationResult(
                **error_fields(rejection),
            )
            for rejection in rejections
        ]
    )


def _binding(creation: AclCreation) -> Binding:
    return Binding(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


CREATE_ACLS = at_controller(
    _create_acls,
    key=ApiKey.CREATE_ACLS,
    versions=(1, 3),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
    reject=_reject_creations,
)


# DescribeAcls (29) --------------------------------------------------------------------------------
#
# List the ACLs that match a filter. Versions 1-3. All parts of the filter must match; the pattern
# type MATCH selects every pattern that applies to a resource of the name. Without an authorizer the
# error is SECURITY_DISABLED. In Kafka: ``AclApis.handleDescribeAcls``.


def _describe_acls(ctx: Context, request: DescribeAclsRequest) -> DescribeAclsResponse:
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


DESCRIBE_ACLS = without_owner(
    _describe_acls,
    key=ApiKey.DESCRIBE_ACLS,
    versions=(1, 3),
    requires=(Requires(Operation.DESCRIBE, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
)


# DeleteAcls (31) ----------------------------------------------------------------------------------
#
# Remove the ACLs that match filters, independently for each filter. Versions 1-3. A removed ACL is
# listed under every filter that matches it. The response is sent when every process has applied the
# change. Without an authorizer the error is SECURITY_DISABLED. In Kafka:
# ``AclApis.handleDeleteAcls``.


async def _delete_acls(
    scope: ControllerScope, request: ControllerRequest[DeleteAclsRequest]
) -> DeleteAclsResponse:
    """Find and remove the ACLs, and wait until every process has applied the change.

    There is one result per filter, in the order of the request.
    """
    filters = tuple(as_filter(each, each.resource_type_filter) for each in request.message.filters)
    found, updates = await scope.cluster.delete_acls(filters)
    await scope.publish(updates)
    return DeleteAclsResponse(filter_results=list(map(_deletion_result, found)))


def _reject_deletions(ctx: Context, request: DeleteAclsRequest) -> DeleteAclsResponse | None:
    """SECURITY_DISABLED for each filter if there is no authorizer."""
    if ctx.authorizer is not None:
        return None
    return DeleteAclsResponse(filter_results=[_deletion_result(DISABLED) for _ in request.filters])


def _deletion_result(found: MatchingAcls | ChangeRejected) -> DeleteAclsFilterResult:
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


DELETE_ACLS = at_controller(
    _delete_acls,
    key=ApiKey.DELETE_ACLS,
    versions=(1, 3),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
    reject=_reject_deletions,
)


APIS = (
    CREATE_ACLS,
    DESCRIBE_ACLS,
    DELETE_ACLS,
)

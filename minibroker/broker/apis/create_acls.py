"""CreateAcls (30): add ACLs, independently of each other.

Versions 1-3. Adding an existing ACL succeeds without a change. The response is sent when every
process has applied the ACLs. Without an authorizer the error is SECURITY_DISABLED. In Kafka:
``AclApis.handleCreateAcls``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.apis.acl_filters import DISABLED
from minibroker.broker.apis.base import CONTROLLER, Api, Context, ControllerScope, Owner
from minibroker.broker.metadata.acls import Binding
from minibroker.broker.metadata.image import ChangeRejected
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from minibroker_protocol.registry import ApiKey

Part = tuple[Binding, ...]
Reply = tuple[ChangeRejected | None, ...]


def split(ctx: Context, request: CreateAclsRequest) -> Mapping[Owner, Part]:
    """Send everything to the controller."""
    return {} if ctx.authorizer is None else {CONTROLLER: tuple(map(_binding, request.creations))}


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


async def execute_at_controller(scope: ControllerScope, part: Part) -> Reply:
    """Validate, store, and wait until every process has applied the change."""
    rejections, updates = await scope.cluster.create_acls(part)
    await scope.publish(updates)
    return rejections


def merge(
    _ctx: Context, request: CreateAclsRequest, replies: Mapping[Owner, Reply]
) -> CreateAclsResponse:
    """One result per rule, in the order of the request."""
    disabled = (DISABLED,) * len(request.creations)
    return CreateAclsResponse(
        results=[
            AclCreationResult(
                error_code=rejection.code if rejection else ErrorCode.NONE,
                error_message=rejection.text if rejection else None,
            )
            for rejection in replies.get(CONTROLLER, disabled)
        ]
    )


API: Api[CreateAclsRequest, Part, Reply, CreateAclsResponse] = Api(
    key=ApiKey.CREATE_ACLS,
    versions=(1, 3),
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
)

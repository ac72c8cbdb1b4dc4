"""CreateAcls (30): add ACLs, independently of each other.

Versions 1-3. Adding an existing ACL succeeds without a change. The response is sent when every
process has applied the ACLs. Without an authorizer the error is SECURITY_DISABLED. In Kafka:
``AclApis.handleCreateAcls``.
"""

from __future__ import annotations

from collections.abc import Iterable

from minibroker.broker.apis.acl_filters import DISABLED
from minibroker.broker.apis.base import (
    CLUSTER_DENIED_TEXT,
    Context,
    ControllerRequest,
    ControllerScope,
    Requires,
    at_controller,
)
from minibroker.broker.metadata.acls import Binding
from minibroker.broker.metadata.image import ChangeRejected
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from minibroker_protocol.registry import ApiKey


async def execute(
    scope: ControllerScope, request: ControllerRequest[CreateAclsRequest]
) -> CreateAclsResponse:
    """Validate, store, and wait until every process has applied the change.

    There is one result per rule, in the order of the request.
    """
    creations = request.message.creations
    rejections, updates = await scope.cluster.create_acls(tuple(map(_binding, creations)))
    await scope.publish(updates)
    return _response(rejections)


def reject(ctx: Context, request: CreateAclsRequest) -> CreateAclsResponse | None:
    """SECURITY_DISABLED for each rule if there is no authorizer."""
    if ctx.authorizer is not None:
        return None
    return _response([DISABLED] * len(request.creations))


def _response(rejections: Iterable[ChangeRejected | None]) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[
            AclCreationResult(
                error_code=rejection.code if rejection else ErrorCode.NONE,
                error_message=rejection.text if rejection else None,
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


API = at_controller(
    execute,
    key=ApiKey.CREATE_ACLS,
    versions=(1, 3),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
    reject=reject,
)

"""Local APIs with an authorizer, and clients with different rights."""

from __future__ import annotations

from typing import Any

from minibroker.broker.apis.registry import APIS
from minibroker.broker.metadata.acls import Binding
from minibroker.broker.security.acl import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    Resource,
)
from minibroker.broker.security.principal import Principal

ON = "authorizer.class.name=kafka.security.authorizer.AclAuthorizer"
ROOT, ALICE = Principal("User", "root"), Principal("User", "alice")
SETTINGS = (ON, f"super.users={ROOT}")


async def grant(
    apis: Any,
    resource: Resource,
    name: str = CLUSTER_NAME,
    *operations: Operation,
    permission: Permission = Permission.ALLOW,
) -> None:
    """Lets Alice do something."""
    wanted = [
        Binding(resource, name, PatternType.LITERAL, str(ALICE), "*", operation, permission)
        for operation in operations
    ]
    _, updates = await apis.cluster.create_acls(wanted)
    await apis.controller.publish(updates)


async def ask_as(apis: Any, who: Principal, request: Any, version: int) -> Any:
    """The response to a request as the registry serves it."""
    apis.principal = who
    return await apis.ask(APIS[type(request).__api_key__], request, version)

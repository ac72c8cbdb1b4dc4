"""What guards are made of: a guard takes out of a request what the caller may not have.

Owns the pieces that the guards beside this module share; it must never know an API.  A guard leaves
in the request what is allowed, and gives what is to be done to the response, or the whole response
where nothing is left.  The invariant: who asks twice for the same is judged once.  Echoes
``AuthHelper``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from minibroker.apis.base import Context, Denied
from minibroker.apis.operations import SUPPORTED, bits
from minibroker.security.acl import CLUSTER_NAME, Operation, Resource
from protocol.errors import ErrorCode

T = TypeVar("T")

Finish = Callable[[Any], Any]
"""From an API's response to the one to send; either may be None, where there is none."""


Guard = Callable[[Context, Any], "Finish | Denied | None"]
"""From a request, which it may change, to what is to be done to the response; None for nothing."""

ERRORS: Mapping[Resource, ErrorCode] = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def allowed(
    ctx: Context,
    operation: Operation,
    resource: Resource,
    items: Iterable[T],
    name: Callable[[T], str | None],
    *,
    quietly: bool = False,
) -> tuple[list[T], list[T]]:
    """Those of some items that the caller may do it to, and the others; who has no name is fine."""
    fine, refused = list[T](), list[T]()
    known: dict[str, bool] = {}
    for item in items:
        called = name(item)
        if called is None:
            fine.append(item)
            continue
        if called not in known:
            known[called] = ctx.allows(operation, resource, called, quietly=quietly)
        (fine if known[called] else refused).append(item)
    return fine, refused


def authorized(ctx: Context, resource: Resource, name: str = CLUSTER_NAME) -> int:
    """The operations that the caller may do to a resource, as a bit field."""
    may = (one for one in SUPPORTED[resource] if ctx.allows(one, resource, name, quietly=True))
    return bits(may)


def open_to_all(_ctx: Context, _request: Any) -> None:
    """The guard of what anybody may ask for."""


def need(
    operation: Operation,
    resource: Resource,
    name: Callable[[Any], str],
    refusal: Callable[..., Any],
) -> Guard:
    """The guard of a request that wants one right; ``refusal`` makes its response of the request
    and an error.
    """

    def guard(ctx: Context, request: Any) -> Denied | None:
        if ctx.allows(operation, resource, name(request)):
            return None
        return Denied(refusal(request, ERRORS[resource]))

    return guard


def need_cluster(operation: Operation, refusal: Callable[..., Any]) -> Guard:
    """The same of the cluster."""
    return need(operation, Resource.CLUSTER, lambda _: CLUSTER_NAME, refusal)

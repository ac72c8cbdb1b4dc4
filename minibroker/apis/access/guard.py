"""A guard before an API: it takes out of a request what the caller may not have.

Owns how guards and APIs are put together; which rights an API wants is for the modules beside this
one.  A guard runs before ``split``: it leaves in the request what is allowed, and gives what is to
be done to the response, or the whole response where nothing is left.  The invariant: an API that is
guarded sees nothing that its caller may not ask for; without an authorizer no guard runs.  Echoes
``AuthHelper``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from minibroker.apis.base import Context, Owner, Round, ServedApi
from minibroker.apis.operations import SUPPORTED, bits
from minibroker.security.acl import CLUSTER_NAME, Operation, Resource
from protocol.errors import ErrorCode

T = TypeVar("T")

Finish = Callable[[Any], Any]
"""From an API's response to the one to send; either may be None, where there is none."""


class Refused(NamedTuple):
    """Nothing of a request is allowed; ``response`` says so."""

    response: Any


Guard = Callable[[Context, Any], "Finish | Refused | None"]
"""From a request, which it may change, to what is to be done to the response; None for nothing."""

ERRORS: Mapping[Resource, ErrorCode] = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def guarded(api: ServedApi, guard: Guard) -> ServedApi:
    """The API with a guard before it."""

    def split(ctx: Context, request: Any) -> Mapping[Owner, Any]:
        if ctx.authorizer is not None:
            ctx.finish = guard(ctx, request)
            if isinstance(ctx.finish, Refused):
                return {}
        return api.split(ctx, request)

    def merge(ctx: Context, request: Any, replies: Mapping[Owner, Any]) -> Any:
        if ctx.finish is None:
            return api.merge(ctx, request, replies)
        if isinstance(ctx.finish, Refused):
            return ctx.finish.response
        return ctx.finish(api.merge(ctx, request, replies))

    def again(ctx: Context, request: Any, replies: Mapping[Owner, Any]) -> Round | None:
        if api.again is None or isinstance(ctx.finish, Refused):
            return None
        return api.again(ctx, request, replies)

    return replace(api, split=split, merge=merge, again=api.again and again)


def allowed(
    ctx: Context,
    operation: Operation,
    resource: Resource,
    items: Iterable[T],
    name: Callable[[T], str | None],
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
            known[called] = ctx.allows(operation, resource, called)
        (fine if known[called] else refused).append(item)
    return fine, refused


def authorized(ctx: Context, resource: Resource, name: str = CLUSTER_NAME) -> int:
    """The operations that the caller may do to a resource, as a bit field."""
    return bits(one for one in SUPPORTED[resource] if ctx.allows(one, resource, name))


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

    def guard(ctx: Context, request: Any) -> Refused | None:
        if ctx.allows(operation, resource, name(request)):
            return None
        return Refused(refusal(request, ERRORS[resource]))

    return guard


def need_cluster(operation: Operation, refusal: Callable[..., Any]) -> Guard:
    """The same of the cluster."""
    return need(operation, Resource.CLUSTER, lambda _: CLUSTER_NAME, refusal)

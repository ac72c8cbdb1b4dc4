"""Building blocks of authorization checks.

A check removes unauthorized items from a request. It returns a function that adds their errors to
the response, or the complete response if the whole request is denied. This module knows no API.
Invariant: a resource that a request names twice is authorized once. Kafka's class is
``AuthHelper``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from minibroker.broker.apis.base import Context, Denied
from minibroker.broker.apis.operations import SUPPORTED, bits
from minibroker.broker.security.acl import CLUSTER_NAME, Operation, Resource
from minibroker_protocol.errors import ErrorCode

T = TypeVar("T")

Finish = Callable[[Any], Any]
"""Turns an API's response into the one to send. Either is None if the API sends no response."""


AuthorizationCheck = Callable[[Context, Any], "Finish | Denied | None"]
"""Checks a request, and may remove items from it; None leaves the response as it is."""

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
    """Split items into authorized and denied ones; items without a name are authorized."""
    permitted, rejected = list[T](), list[T]()
    known: dict[str, bool] = {}
    for item in items:
        called = name(item)
        if called is None:
            permitted.append(item)
            continue
        if called not in known:
            known[called] = ctx.allows(operation, resource, called, quietly=quietly)
        (permitted if known[called] else rejected).append(item)
    return permitted, rejected


def authorized(ctx: Context, resource: Resource, name: str = CLUSTER_NAME) -> int:
    """Operations on a resource that the caller is authorized for, as a bit field."""
    may = (one for one in SUPPORTED[resource] if ctx.allows(one, resource, name, quietly=True))
    return bits(may)


def allow_all(_ctx: Context, _request: Any) -> None:
    """Allow every request."""


def require(
    operation: Operation,
    resource: Resource,
    name: Callable[[Any], str],
    error_response: Callable[..., Any],
) -> AuthorizationCheck:
    """Build the check of a request that requires one operation on one resource.

    ``error_response`` builds the error response from the request and an error code.
    """

    def check(ctx: Context, request: Any) -> Denied | None:
        if ctx.allows(operation, resource, name(request)):
            return None
        return Denied(error_response(request, ERRORS[resource]))

    return check


def require_cluster(operation: Operation, error_response: Callable[..., Any]) -> AuthorizationCheck:
    """Build the check of a request that requires one operation on the cluster."""
    return require(operation, Resource.CLUSTER, lambda _: CLUSTER_NAME, error_response)

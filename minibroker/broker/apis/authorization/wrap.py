"""Wraps each API in its authorization check; loaded only when an authorizer is configured.

The order is: check, ``split``, ``merge``, then the completion function that the check returned.
The checks themselves are in the other modules of this package, which are imported by the first
request after an authorizer is configured. Invariant: a wrapped API sees only items that its caller
is authorized for; without an authorizer no check runs. Kafka's class is ``AuthHelper``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from minibroker.broker.apis.base import Context, Denied, Owner, Round, ServedApi


def with_authorization_check(api: ServedApi) -> ServedApi:
    """Return the API with its authorization check."""

    def split(ctx: Context, request: Any) -> Mapping[Owner, Any]:
        if ctx.authorizer is not None:
            from minibroker.broker.apis.authorization.table import CHECKS

            ctx.finish = CHECKS[api.key](ctx, request)
            if isinstance(ctx.finish, Denied):
                return {}
        return api.split(ctx, request)

    def merge(ctx: Context, request: Any, replies: Mapping[Owner, Any]) -> Any:
        if ctx.finish is None:
            return api.merge(ctx, request, replies)
        if isinstance(ctx.finish, Denied):
            return ctx.finish.response
        return ctx.finish(api.merge(ctx, request, replies))

    def next_round(ctx: Context, request: Any, replies: Mapping[Owner, Any]) -> Round | None:
        if api.next_round is None or isinstance(ctx.finish, Denied):
            return None
        return api.next_round(ctx, request, replies)

    return replace(api, split=split, merge=merge, next_round=api.next_round and next_round)

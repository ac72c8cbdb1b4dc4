"""How guards are put before APIs, and that none is loaded where nobody is to be stopped.

Owns the order guard, ``split``, ``merge``, what the guard has yet to do; which rights an API wants
is for the modules beside this one, which are loaded with the first authorizer.  The invariant: an
API that is guarded sees nothing that its caller may not ask for; without an authorizer no guard
runs.  Echoes ``AuthHelper``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from minibroker.apis.base import Context, Denied, Owner, Round, ServedApi


def guarded(api: ServedApi) -> ServedApi:
    """The API with its guard before it."""

    def split(ctx: Context, request: Any) -> Mapping[Owner, Any]:
        if ctx.authorizer is not None:
            from minibroker.apis.access.table import GUARDS

            ctx.finish = GUARDS[api.key](ctx, request)
            if isinstance(ctx.finish, Denied):
                return {}
        return api.split(ctx, request)

    def merge(ctx: Context, request: Any, replies: Mapping[Owner, Any]) -> Any:
        if ctx.finish is None:
            return api.merge(ctx, request, replies)
        if isinstance(ctx.finish, Denied):
            return ctx.finish.response
        return ctx.finish(api.merge(ctx, request, replies))

    def again(ctx: Context, request: Any, replies: Mapping[Owner, Any]) -> Round | None:
        if api.again is None or isinstance(ctx.finish, Denied):
            return None
        return api.again(ctx, request, replies)

    return replace(api, split=split, merge=merge, again=api.again and again)

"""Wraps each API in its authorization check, and keeps the authorizer up to date.

The order is: check, ``split``, ``merge``, then the completion function that the check returned.
An API states what it requires; the modules that check it are loaded by the first request after an
authorizer is configured. Invariant: a wrapped API sees only items that its caller is authorized
for, by the ACLs of the image that the request reads; without an authorizer no check runs. Kafka's
class is ``AuthHelper``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from minibroker.broker.apis.base import SPECIAL, Context, Denied, Owner, Round, ServedApi
from minibroker.broker.metadata.image import Image
from minibroker.broker.security.acl import Acls, Authorizer
from minibroker.broker.security.principal import parse
from minibroker.broker.settings import (
    ALLOW_EVERYONE_IF_NO_ACL_FOUND,
    AUTHORIZER_CLASS_NAME,
    SUPER_USERS,
    Settings,
)


def with_authorization_check(api: ServedApi) -> ServedApi:
    """Return the API with its authorization check."""
    requires = api.requires
    if requires == ():
        return api

    def split(ctx: Context, request: Any) -> Mapping[Owner, Any]:
        if ctx.authorizer is not None:
            if requires is SPECIAL:
                from minibroker.broker.apis.authorization.special_checks import SPECIAL_CHECKS

                ctx.finish = SPECIAL_CHECKS[api.key](ctx, request)
            else:
                from minibroker.broker.apis.authorization.checks import check_requirements

                ctx.finish = check_requirements(ctx, request, requires)
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


class Authorizers:
    """The current authorizer of a process: None, or one built from the ACLs of the newest image."""

    def __init__(self, settings: Settings) -> None:
        self._is_on = bool(settings[AUTHORIZER_CLASS_NAME])
        super_users = settings[SUPER_USERS]
        self._super_users = tuple(map(parse, super_users))
        self._allow_if_none = settings[ALLOW_EVERYONE_IF_NO_ACL_FOUND]
        self._acls: Acls | None = None
        self._newest: Authorizer | None = None

    def of(self, image: Image) -> Authorizer | None:
        """Authorizer for the ACLs of an image; None if authorization is off."""
        if self._is_on and image.acls is not self._acls:
            self._acls = image.acls
            self._newest = Authorizer(
                image.acls, self._super_users, allow_if_none=self._allow_if_none
            )
        return self._newest

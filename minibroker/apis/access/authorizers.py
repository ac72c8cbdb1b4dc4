"""The authorizer in force: none, or the one for the rules of the newest image.

Owns when a new one is made, and who the super users are; what it decides is ``security.acl``'s to
know.  The invariant: a decision follows the rules of the very image that the request sees.  Echoes
the authorizers that Kafka's brokers make at their start and tell of every change.
"""

from __future__ import annotations

from minibroker.cluster.image import Image
from minibroker.config import (
    ALLOW_EVERYONE_IF_NO_ACL_FOUND,
    AUTHORIZER_CLASS_NAME,
    SUPER_USERS,
    Settings,
)
from minibroker.security.acl import Acls, Authorizer
from minibroker.security.principal import parse


class Authorizers:
    """The authorizers of one process, one after the other."""

    def __init__(self, settings: Settings) -> None:
        self._is_on = bool(settings[AUTHORIZER_CLASS_NAME])
        super_users = settings[SUPER_USERS]
        self._super_users = tuple(map(parse, super_users))
        self._allow_if_none = settings[ALLOW_EVERYONE_IF_NO_ACL_FOUND]
        self._acls: Acls | None = None
        self._newest: Authorizer | None = None

    def of(self, image: Image) -> Authorizer | None:
        """Who decides by the rules of an image; None where everybody may do everything."""
        if self._is_on and image.acls is not self._acls:
            self._acls = image.acls
            self._newest = Authorizer(
                image.acls, self._super_users, allow_if_none=self._allow_if_none
            )
        return self._newest

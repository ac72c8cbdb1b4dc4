"""The current authorizer: None, or one built from the ACLs of the newest cluster image.

A new authorizer is built when the image has new ACLs; ``security.acl`` takes the decisions.
Invariant: a request is authorized by the ACLs of the same image that it reads. Kafka's brokers
create one authorizer at start and notify it of ACL changes.
"""

from __future__ import annotations

from minibroker.broker.metadata.image import Image
from minibroker.broker.security.acl import Acls, Authorizer
from minibroker.broker.security.principal import parse
from minibroker.broker.settings import (
    ALLOW_EVERYONE_IF_NO_ACL_FOUND,
    AUTHORIZER_CLASS_NAME,
    SUPER_USERS,
    Settings,
)


class Authorizers:
    """Keeps the authorizer of one process up to date with the image."""

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

"""SCRAM credentials of delegation tokens, made when a client first uses them.

Owns a bounded cache of credentials, because one takes milliseconds. It must never authenticate.
Invariant: an expired or removed token has no credential. Kafka's ``DelegationTokenCache``, which
makes the credentials of all tokens in advance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from minibroker.broker.metadata.delegation_tokens import find_token
from minibroker.broker.metadata.image import Image
from minibroker.broker.security.delegation_token import token_credential
from minibroker.broker.security.scram import Credential, TokenCredential
from minibroker.broker.settings import DELEGATION_TOKEN_SECRET_KEY, Settings

CACHE_MAX: Final = 1000


class TokenCredentials:
    """Finds the credentials of tokens in the image."""

    def __init__(
        self, settings: Settings, image: Callable[[], Image], wall_ms: Callable[[], int]
    ) -> None:
        self._key = settings[DELEGATION_TOKEN_SECRET_KEY]
        self._image = image
        self._wall_ms = wall_ms
        self._known: dict[tuple[str, str], Credential] = {}

    def find(self, mechanism: str, token_id: str) -> TokenCredential | None:
        """The credential of a valid token, or None."""
        token = find_token(self._image(), token_id) if self._key else None
        if token is None or not self._key or token.is_expired(self._wall_ms()):
            return None
        credential = self._known.get((mechanism, token_id))
        if credential is None:
            if len(self._known) >= CACHE_MAX:
                self._known.clear()
            credential = token_credential(self._key, token_id, mechanism)
            self._known[mechanism, token_id] = credential
        return TokenCredential(credential, token.owner.name, token.expires_ms)

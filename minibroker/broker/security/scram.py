"""SCRAM (RFC 5802, RFC 7677): proof of a password that is never sent.

Owns the arithmetic of credentials, their text in the config store, and the two steps of the
exchange; nonces and the secret for unknown users are arguments. It must never know a password after
its credential is made. Invariant: an unknown user is answered like a known one, with a constant
salt and iterations that known users could have, and fails at the proof. Kafka's
``ScramSaslServer``, ``ScramFormatter`` and ``ScramCredentialUtils``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from minibroker.broker.security.authentication import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    AuthenticatedUser,
    AuthenticationFailed,
    AuthenticationStep,
    text_of,
)
from minibroker.broker.security.principal import Principal, parse

HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
MECHANISM_NUMBERS: Final = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
"""Numbers of mechanisms in requests."""

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
SALT_BYTES: Final = 18

_TOKEN_AUTH: Final = "tokenauth=true"  # noqa: S105 - not a secret
"""Extension of a client whose user name is the id of a delegation token."""

_KEYS: Final = ("salt", "stored_key", "server_key")
_GS2: Final = r"(?P<gs2>(?P<binding>n|y|p=[A-Za-z0-9.-]+),(?:a=(?P<acting_as>[^,]*))?,)"
_FIRST = re.compile(
    _GS2 + r"(?P<bare>(?:m=[^,]*,)?n=(?P<name>[^,]+),r=(?P<nonce>[!-+\--~]+)(?P<more>(?:,[^,]*)*))"
)
_FINAL = re.compile(
    r"(?P<bare>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,[^,]*)*?)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)


class Credential(NamedTuple):
    """The stored part of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password, as clients and tools send it to set a password."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def credential(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> Credential:
    """Return the credential of a salted password."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return Credential(
        salt,
        hashlib.new(name, client_key).digest(),
        hmac.digest(salted_password, b"Server Key", name),
        iterations,
    )


def credential_text(kept: Credential) -> str:
    """Return the text in which Kafka stores a credential."""
    salt, stored, server = map(_base64, kept[:3])
    return f"salt={salt},stored_key={stored},server_key={server},iterations={kept.iterations}"


def parse_credential(text: str) -> Credential | None:
    """Parse the text of a credential; None if it is invalid."""
    parts = text.split(",")
    fields = dict(part.partition("=")[::2] for part in parts)
    try:
        salt, stored, server = (base64.b64decode(fields[key], validate=True) for key in _KEYS)
        made = Credential(salt, stored, server, int(fields["iterations"]))
    except (KeyError, ValueError):
        return None
    return made if len(parts) == len(made) else None


class TokenCredential(NamedTuple):
    """Credential of a delegation token, with its owner and the end of its validity."""

    credential: Credential
    owner: str
    expires_ms: int


class CredentialShape(NamedTuple):
    """Parts of a credential that the first message of a server shows, and how many users share
    them.
    """

    iterations: int
    salt_bytes: int
    users: int


DEFAULT_SHAPES: Final = (CredentialShape(ITERATIONS_MIN, SALT_BYTES, 1),)
"""Shape shown for unknown users while no user has a credential."""


def fake_credential(
    mechanism: str, user: str, secret: bytes, shapes: Sequence[CredentialShape]
) -> Credential:
    """Return the credential shown for an unknown user: constant, and of no password.

    Its iterations and salt length are those of existing users, with the same frequency.
    """
    name = HASHES[mechanism]
    stored, server = (
        hmac.digest(secret, f"{use} {mechanism} {user}".encode(), name)
        for use in ("stored", "server")
    )
    shape = max(shapes or DEFAULT_SHAPES, key=lambda each: _weight(mechanism, user, secret, each))
    salt = hmac.digest(secret, f"salt {mechanism} {user}".encode(), name)
    return Credential(
        hashlib.shake_256(salt).digest(shape.salt_bytes), stored, server, shape.iterations
    )


def _weight(mechanism: str, user: str, secret: bytes, shape: CredentialShape) -> float:
    """Weighted rendezvous hashing: a new user changes the shape of few unknown ones."""
    text = f"shape {mechanism} {user} {shape.iterations} {shape.salt_bytes}"
    drawn = int.from_bytes(hmac.digest(secret, text.encode(), "sha256")[:8], "big")
    return -shape.users / math.log((drawn + 1) / (2**64 + 1))


class Scram:
    """One exchange. ``find`` returns a user's credential, ``shapes`` those of all users.

    ``find_token`` returns the credential of a delegation token by its id.
    ``nonce`` is used once; ``secret`` makes the credentials of unknown users unpredictable.
    """

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str], Credential | None],
        *,
        nonce: str,
        secret: bytes,
        shapes: Callable[[], Sequence[CredentialShape]] = lambda: DEFAULT_SHAPES,
        find_token: Callable[[str], TokenCredential | None] = lambda _: None,
    ) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._find = find
        self._find_token = find_token
        self._nonce = nonce
        self._secret = secret
        self._shapes = shapes
        self._proven: AuthenticatedUser | None = None
        self._kept: Credential | None = None
        self._gs2 = self._client_first = self._server_first = ""

    def respond(self, token: bytes) -> AuthenticationStep:
        """Answer the first token with the salt, and the second one with the result of the proof."""
        if self._kept is None:
            return AuthenticationStep(self._first(text_of(token)))
        kept, self._kept = self._kept, None
        return self._final(text_of(token), kept)

    def _first(self, text: str) -> bytes:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise AuthenticationFailed("the client's first message is not a SCRAM message")
        if found["binding"].startswith("p") or found["bare"].startswith("m="):
            raise AuthenticationFailed("the client requests channel binding or an extension")
        user = _user_name(found["name"])
        acting_as = _user_name(found["acting_as"] or "")
        known, proven = self._known(user, by_token=_TOKEN_AUTH in found["more"].split(","))
        if acting_as not in ("", user):
            text = "Authentication failed: Client requested an authorization id that is different "
            raise AuthenticationFailed(text + "from username", text + "from username")
        kept = known or fake_credential(self._mechanism, user, self._secret, self._shapes())
        self._kept = kept
        self._proven = proven if known else None
        self._gs2, self._client_first = found["gs2"], found["bare"]
        self._nonce = found["nonce"] + self._nonce
        salt = _base64(kept.salt)
        self._server_first = f"r={self._nonce},s={salt},i={kept.iterations}"
        return self._server_first.encode()

    def _known(self, user: str, *, by_token: bool) -> tuple[Credential | None, AuthenticatedUser]:
        """The credential of a user or a token, and the user that a proof of it authenticates."""
        token = self._find_token(user) if by_token else None
        if token is not None:
            return token.credential, AuthenticatedUser(token.owner, token.expires_ms, by_token=True)
        return None if by_token else self._find(user), AuthenticatedUser(user)

    def _final(self, text: str, kept: Credential) -> AuthenticationStep:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise AuthenticationFailed("the client's final message is not a SCRAM message")
        if found["nonce"] != self._nonce:
            raise AuthenticationFailed("Invalid client nonce in the final client message.")
        if found["binding"] != _base64(self._gs2.encode()):
            raise AuthenticationFailed("the client's two messages differ in channel binding")
        signed = f"{self._client_first},{self._server_first},{found['bare']}".encode()
        signature = hmac.digest(kept.stored_key, signed, self._hash)
        client_key = _xor(_from_base64(found["proof"]), signature)
        is_valid = hmac.compare_digest(
            hashlib.new(self._hash, client_key).digest(), kept.stored_key
        )
        if not is_valid or self._proven is None:
            raise AuthenticationFailed("Invalid client credentials")
        verifier = _base64(hmac.digest(kept.server_key, signed, self._hash))
        return AuthenticationStep(f"v={verifier}".encode(), self._proven)


def _user_name(text: str) -> str:
    if re.search("=(?!2C|3D)", text):
        raise AuthenticationFailed("the user name has an invalid = escape")
    return text.replace("=2C", ",").replace("=3D", "=")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("the client's proof is not base64") from None


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=False))


# ----- Delegation tokens: their secret, their lifetime, and their form in the config store (KIP-48)
# Owns the arithmetic of times and the HMAC that is the token's secret. It must never store a
# secret: the HMAC follows from the token's id and ``delegation.token.secret.key``. Invariant: a
# token never outlives its maximum lifetime. Kafka's ``TokenInformation`` and
# ``DelegationTokenManager``.


TIMESTAMP_MAX: Final = 2**63 - 1
HMAC_HASH: Final = "sha512"
_SALT_LABEL: Final = b"salt of "


class DelegationToken(NamedTuple):
    """One token; times are epoch milliseconds."""

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    def is_expired(self, now_ms: int) -> bool:
        """Whether the token can no longer be used."""
        return min(self.expires_ms, self.max_ms) < now_ms

    def may_be_changed_by(self, principal: Principal) -> bool:
        """Whether this is the owner or a renewer."""
        return principal == self.owner or principal in self.renewers

    def expiring(self, expires_ms: int) -> DelegationToken:
        """The token with another expiry, which its maximum lifetime bounds."""
        return self._replace(expires_ms=min(self.max_ms, expires_ms))


class TokenLifetimes(NamedTuple):
    """Limits of new tokens and renewals in milliseconds."""

    max_ms: int
    renewal_ms: int


def issue(
    token_id: str,
    owner: Principal,
    requester: Principal,
    renewers: tuple[Principal, ...],
    *,
    now_ms: int,
    requested_ms: int,
    lifetimes: TokenLifetimes,
) -> DelegationToken:
    """Return a new token; a requested lifetime that is not positive is the longest one."""
    lifetime_ms = min(lifetimes.max_ms, requested_ms) if requested_ms > 0 else lifetimes.max_ms
    max_ms = later(now_ms, lifetime_ms)
    expires_ms = min(max_ms, later(now_ms, lifetimes.renewal_ms))
    return DelegationToken(token_id, owner, requester, renewers, now_ms, expires_ms, max_ms)


def later(now_ms: int, duration_ms: int) -> int:
    """The time after a duration, at most the largest timestamp."""
    return min(TIMESTAMP_MAX, now_ms + duration_ms)


def token_hmac(key: str, token_id: str) -> bytes:
    """Return the secret of a token."""
    return hmac.digest(key.encode(), token_id.encode(), HMAC_HASH)


def token_credential(key: str, token_id: str, mechanism: str) -> Credential:
    """Return the SCRAM credential of a token, whose password is the HMAC in base64."""
    secret = token_hmac(key, token_id)
    salt = hmac.digest(secret, _SALT_LABEL + mechanism.encode(), HASHES[mechanism])
    password = base64.b64encode(secret).decode()
    return credential(
        mechanism, salted(mechanism, password, salt, ITERATIONS_MIN), salt, ITERATIONS_MIN
    )


def encode_token(token: DelegationToken) -> Mapping[str, str]:
    """Return the stored form of a token, without its id, which is its name."""
    return {
        "owner": str(token.owner),
        "requester": str(token.requester),
        "renewers": json.dumps(token.renewers),
        "issued.ms": str(token.issued_ms),
        "expires.ms": str(token.expires_ms),
        "max.ms": str(token.max_ms),
    }


def decode_token(token_id: str, stored: Mapping[str, str]) -> DelegationToken | None:
    """Return a token from its stored form; None if that is invalid."""
    try:
        return DelegationToken(
            token_id,
            parse(stored["owner"]),
            parse(stored["requester"]),
            _renewers(stored["renewers"]),
            int(stored["issued.ms"]),
            int(stored["expires.ms"]),
            int(stored["max.ms"]),
        )
    except (KeyError, ValueError, RecursionError):
        return None


def _renewers(text: str) -> tuple[Principal, ...]:
    """Principals of any names, also empty ones. Raises ValueError."""
    pairs = json.loads(text)
    is_list = isinstance(pairs, list) and all(isinstance(pair, list) for pair in pairs)
    if not is_list or not all(list(map(type, pair)) == [str, str] for pair in pairs):
        raise ValueError("not a list of types and names")
    return tuple(Principal(*pair) for pair in pairs)

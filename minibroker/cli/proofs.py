"""The client's half of SASL: what it sends, step by step, to prove who it is.

Owns the messages of each mechanism as generators: they yield what to send and are sent what came
back, and end when nothing more is to be said. They must never know a connection. Invariant: SCRAM
ends only after the broker has shown that it knows the password too. Kafka's ``PlainSaslClient``,
``ScramSaslClient`` and ``OAuthBearerSaslClient``; RFC 4616, 5802 and 7628.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
from collections.abc import Generator
from typing import Final, TypeAlias

from minibroker.security.scram import HASHES, ITERATIONS_MAX, ITERATIONS_MIN, credential, salted

Proof: TypeAlias = Generator[bytes, bytes, None]

_SERVER_FIRST = re.compile(r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<i>\d{1,9})")
_NO_BINDING: Final = "n,,"


class NotTheBroker(Exception):
    """Who answers does not know what the broker must know; the text says what was wrong."""


def plain(user: str, password: str) -> Proof:
    """Name and password as they are."""
    yield f"\0{user}\0{password}".encode()


def bearer(token: str) -> Proof:
    """A token; the broker's complaint about it is acknowledged, upon which it says no."""
    complaint = yield f"{_NO_BINDING}\x01auth=Bearer {token}\x01\x01".encode()
    if complaint:
        yield b"\x01"


def scram(mechanism: str, user: str, password: str, nonce: str) -> Proof:
    """A proof that the password is known; ``nonce`` is used once. Raises `NotTheBroker`."""
    name = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    answer = (yield f"{_NO_BINDING}{first}".encode()).decode(errors="replace")
    found = _SERVER_FIRST.match(answer)
    if found is None or not found["nonce"].startswith(nonce) or found["nonce"] == nonce:
        raise NotTheBroker("its first answer is no message of SCRAM for us")
    if not ITERATIONS_MIN <= int(found["i"]) <= ITERATIONS_MAX:
        raise NotTheBroker(f"it wants {found['i']} iterations of the password's hash")
    salt = _decoded(found["salt"])
    secret = salted(mechanism, password, salt, int(found["i"]))
    binding = base64.b64encode(_NO_BINDING.encode()).decode()
    final = f"c={binding},r={found['nonce']}"
    signed = f"{first},{answer},{final}".encode()
    known = credential(mechanism, secret, salt, int(found["i"]))
    client_key = hmac.digest(secret, b"Client Key", HASHES[mechanism])
    signature = hmac.digest(known.stored_key, signed, HASHES[mechanism])
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    verdict = yield f"{final},p={base64.b64encode(proof).decode()}".encode()
    theirs = hmac.digest(known.server_key, signed, HASHES[mechanism])
    if not hmac.compare_digest(b"v=" + base64.b64encode(theirs), verdict.partition(b",")[0]):
        raise NotTheBroker("it does not know the password itself")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise NotTheBroker("the salt that it sent is no base64") from None


def unsecured_token(claims: dict[str, str], now_s: float, lifetime_s: float) -> str:
    """A token that nobody has signed, as Kafka's ``OAuthBearerUnsecuredLoginCallbackHandler``
    makes it; for tests only.
    """
    body = {**claims, "iat": now_s, "exp": now_s + lifetime_s}
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, body))
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."

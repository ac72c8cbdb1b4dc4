"""What clients send: the tokens of each mechanism, made as a client makes them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from minibroker.broker.security.scram import HASHES, salted


def plain(user: str, password: str, acting_as: str = "") -> bytes:
    return f"{acting_as}\0{user}\0{password}".encode()


def unsigned(claims: Mapping[str, Any]) -> str:
    """Return an unsigned token."""
    return f"{_base64url({'alg': 'none'})}.{_base64url(claims)}."


def _base64url(fields: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")


def bearer(token: str, acting_as: str = "", extensions: str = "") -> bytes:
    who = f"a={acting_as}" if acting_as else ""
    return f"n,{who},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


class ScramClient:
    """The client's half of one exchange."""

    def __init__(
        self,
        mechanism: str,
        user: str,
        password: str,
        *,
        nonce: str = "rOprNGfwEbeRWgbNEkqO",
        gs2: str = "n,,",
        more: str = "",
    ) -> None:
        self.mechanism = mechanism
        self.hash = HASHES[mechanism]
        self.password = password
        self.gs2 = gs2
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}{more}"
        self.verifier = ""

    def first(self) -> bytes:
        return (self.gs2 + self.bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the proof, and keep what the server must answer."""
        challenge = server_first.decode()
        fields = dict(part.partition("=")[::2] for part in challenge.split(","))
        salt, count = base64.b64decode(fields["s"]), int(fields["i"])
        key = salted(self.mechanism, self.password, salt, count)
        client_key = hmac.digest(key, b"Client Key", self.hash)
        stored = hashlib.new(self.hash, client_key).digest()
        binding = base64.b64encode(self.gs2.encode()).decode()
        bare = f"c={binding},r={fields['r']}"
        signed = f"{self.bare},{challenge},{bare}".encode()
        signature = hmac.digest(stored, signed, self.hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(key, b"Server Key", self.hash)
        verifier = hmac.digest(server_key, signed, self.hash)
        self.verifier = f"v={base64.b64encode(verifier).decode()}"
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

"""SASL exchanges out of order, with wrong proofs, as another principal, and past their lifetime.

Owns the steps and what may never succeed. The invariant: a request that is answered without a valid
authentication is counted as a violation, and nothing else is; being refused is always right.
"""

from __future__ import annotations

import random
import ssl
import time
from collections import Counter
from typing import Any, Final

from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest
from system_tests.attack.targets import Target
from system_tests.connections.dialling import Client
from system_tests.security.conftest import PASSWORDS

VIOLATION: Final = "violation: "
"""Names of counts that must not be there begin with this."""

MECHANISMS: Final = (
    "PLAIN",
    "PLAIN",
    "PLAIN",
    "SCRAM-SHA-256",
    "OAUTHBEARER",
    "GSSAPI",
    "",
    "a" * 300,
)
STEPS_MAX: Final = 9
GRACE_S: Final = 1.5
"""An expired session may serve a request that was on its way, and clocks are read at both ends."""

GARBAGE: Final = (
    b"",
    b"\0",
    b"\0alice\0",
    b"\0alice\0wrong",
    b"bob\0alice\0wonderland",
    b"\0" * 1000,
    b"n,,n=alice,r=nonce",
    b"n,,\x01auth=Bearer x\x01\x01",
    b"\xff" * 200_000,
)


class Session:
    """One connection, and what the broker may do for it."""

    def __init__(self, client: Client, dice: random.Random, counts: Counter[str]) -> None:
        self._client = client
        self._dice = dice
        self._counts = counts
        self._mechanism = ""
        self._principal: str | None = None
        self._expires = 0.0

    def run(self) -> None:
        """Take random steps until the broker closes the connection, which raises."""
        steps = (self._log_in, self._handshake, self._prove, self._prove, self._prove_wrongly)
        others = (self._request, self._request, self._versions, self._outlive)
        if self._dice.random() < 0.5:
            self._log_in()
        for _ in range(self._dice.randrange(1, STEPS_MAX)):
            self._counts["SASL steps"] += 1
            self._dice.choice((*steps, *others))()

    def _log_in(self) -> None:
        """Authenticate in order; a second time it is as another principal, in most cases."""
        self._begin("PLAIN")
        self._prove()

    def _handshake(self) -> None:
        self._begin(self._dice.choice(MECHANISMS))

    def _begin(self, mechanism: str) -> None:
        self._mechanism = mechanism
        self._client.ask(SaslHandshakeRequest(mechanism=mechanism), 1)

    def _prove(self) -> None:
        user = self._dice.choice(sorted(PASSWORDS))
        answer = self._authenticate(f"\0{user}\0{PASSWORDS[user]}".encode())
        if answer.error_code:
            return
        if self._mechanism != "PLAIN":
            self._counts[f"{VIOLATION}a password was accepted after another handshake"] += 1
        if self._principal not in (None, user):
            self._counts[f"{VIOLATION}the principal changed"] += 1
        self._principal = user
        self._expires = time.monotonic() + answer.session_lifetime_ms / 1000
        self._mechanism = ""

    def _prove_wrongly(self) -> None:
        answer = self._authenticate(self._dice.choice(GARBAGE))
        # SCRAM's first step and OAUTHBEARER's rejection (RFC 7628) are challenges without an error.
        if answer.error_code == 0 and not answer.auth_bytes:
            self._counts[f"{VIOLATION}a wrong proof was accepted"] += 1

    def _authenticate(self, token: bytes) -> Any:
        return self._client.ask(SaslAuthenticateRequest(auth_bytes=token), 1)

    def _versions(self) -> None:
        self._client.ask(ApiVersionsRequest(), 0)

    def _request(self) -> None:
        started = time.monotonic()
        self._client.ask(MetadataRequest(topics=None), 1)
        if self._principal is None:
            self._counts[f"{VIOLATION}a request was served without authentication"] += 1
        elif started > self._expires + GRACE_S:
            self._counts[f"{VIOLATION}a request was served after the session's lifetime"] += 1
        else:
            self._counts["authenticated requests"] += 1

    def _outlive(self) -> None:
        """Wait until the session is over, then ask."""
        if self._principal is None or self._dice.random() < 0.7:
            return
        time.sleep(max(0.0, self._expires - time.monotonic()) + GRACE_S + 0.1)
        self._counts["expired sessions"] += 1
        self._request()


def attack(target: Target, seed: str, deadline: float) -> Counter[str]:
    """Run sessions over SASL_PLAINTEXT and SASL_SSL until the deadline."""
    assert target.sasl is not None
    assert target.sasl_tls is not None
    dice = random.Random(seed)
    counts: Counter[str] = Counter()
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    while time.monotonic() < deadline:
        is_tls = dice.random() < 0.4
        try:
            with Client(target.sasl_tls if is_tls else target.sasl, client_id="hostile") as client:
                client.socket.settimeout(20)
                if is_tls:
                    client.socket = context.wrap_socket(client.socket)
                Session(client, dice, counts).run()
        except (OSError, AssertionError, IndexError):
            counts["SASL sessions refused"] += 1
        counts["SASL sessions"] += 1
    return counts

"""Client side of SASL, against the broker's mechanisms and against invalid servers."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.security.mechanism import (
    AuthenticatedUser,
    AuthenticationFailed,
    Mechanism,
    Plain,
)
from minibroker.broker.security.oauth import OAuthBearer, TokenRules, unsecured
from minibroker.broker.security.scram import HASHES, Scram, credential, salted
from minibroker.client.sasl import (
    SaslExchange,
    ServerNotVerified,
    oauthbearer,
    plain,
    scram,
    unsecured_token,
)

NOW_S = 1_700_000_000.0
names = st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text)
scrams = st.sampled_from(list(HASHES))


def converse(proof: SaslExchange, mechanism: Mechanism) -> AuthenticatedUser | None:
    """Pass messages between client and server until the client's exchange ends."""
    proven, token = None, next(proof)
    while True:
        step = mechanism.respond(token)
        proven = proven or step.proven
        try:
            token = proof.send(step.response)
        except StopIteration:
            return proven


def scram_of(mechanism: str, user: str, password: str, iterations: int = 4096) -> Scram:
    kept = credential(
        mechanism, salted(mechanism, password, b"salt", iterations), b"salt", iterations
    )
    return Scram(mechanism, {user: kept}.get, nonce="theirs", secret=b"")


@given(names, names)
def test_plain_password_is_verified(user: str, password: str) -> None:
    assert converse(plain(user, password), Plain({user: password})) == AuthenticatedUser(user)
    with pytest.raises(AuthenticationFailed):
        converse(plain(user, password + "x"), Plain({user: password}))


@given(scrams, names, names)
def test_scram_password_is_verified(mechanism: str, user: str, password: str) -> None:
    theirs = scram_of(mechanism, user, password)
    assert converse(scram(mechanism, user, password, "ours"), theirs) == AuthenticatedUser(user)


@given(scrams, names)
def test_scram_with_wrong_password_fails(mechanism: str, user: str) -> None:
    with pytest.raises(AuthenticationFailed, match="Invalid client credentials"):
        converse(scram(mechanism, user, "guessed", "ours"), scram_of(mechanism, user, "secret"))


SALT = base64.b64encode(b"salt").decode()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "not a valid SCRAM message"),
        (b"e=other-error", "not a valid SCRAM message"),
        (b"\xff\xfe", "not a valid SCRAM message"),
        (f"r=somebody's,s={SALT},i=4096".encode(), "for this client"),
        (f"r=ours,s={SALT},i=4096".encode(), "for this client"),
        (f"r=ours+,s={SALT},i=1".encode(), "requires 1 iterations"),
        (f"r=ours+,s={SALT},i=999999999".encode(), "requires 999999999 iterations"),
        (b"r=ours+,s=abc,i=4096", "not base64"),
    ],
)
def test_scram_with_invalid_server_message_raises(answer: bytes, why: str) -> None:
    proof = scram("SCRAM-SHA-256", "alice", "secret", "ours")
    next(proof)
    with pytest.raises(ServerNotVerified, match=why):
        proof.send(answer)


@pytest.mark.parametrize("verdict", [b"", b"v=", b"v=AAAA", b"e=invalid-proof"])
def test_scram_with_wrong_server_signature_raises(verdict: bytes) -> None:
    proof = scram("SCRAM-SHA-512", "alice", "secret", "ours")
    next(proof)
    proof.send(f"r=ours+,s={SALT},i=4096".encode())
    with pytest.raises(ServerNotVerified, match="does not know the password"):
        proof.send(verdict)


def test_oauthbearer_token_names_the_principal() -> None:
    token = unsecured_token({"sub": "alice"}, NOW_S, 60)
    theirs = OAuthBearer(unsecured, TokenRules(), lambda: int(NOW_S * 1000))
    assert converse(oauthbearer(token), theirs) == AuthenticatedUser(
        "alice", int(NOW_S + 60) * 1000
    )


def test_oauthbearer_rejected_token_raises() -> None:
    token = unsecured_token({"sub": "alice"}, NOW_S, 60)
    theirs = OAuthBearer(unsecured, TokenRules(), lambda: int(NOW_S + 61) * 1000)
    with pytest.raises(AuthenticationFailed, match="it has expired"):
        converse(oauthbearer(token), theirs)

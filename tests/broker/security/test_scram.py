"""SCRAM: the example of RFC 7677, Kafka's text form, and what unknown users get to see."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from minibroker.broker.security.authentication import AuthenticatedUser, AuthenticationFailed
from minibroker.broker.security.principal import Principal
from minibroker.broker.security.scram import (
    HASHES,
    ITERATIONS_MIN,
    SALT_BYTES,
    TIMESTAMP_MAX,
    Credential,
    CredentialShape,
    Scram,
    TokenCredential,
    TokenLifetimes,
    credential,
    credential_text,
    decode_token,
    encode_token,
    fake_credential,
    issue,
    later,
    parse_credential,
    salted,
    token_credential,
    token_hmac,
)
from tests.broker.security.tokens import ScramClient

SECRET = b"s" * 32


def kept(mechanism: str, password: str = "pencil", iterations: int = 4096) -> Credential:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    return credential(mechanism, salted(mechanism, password, salt, iterations), salt, iterations)


def exchange(mechanism: str, **users: Credential) -> Scram:
    return Scram(mechanism, users.get, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", secret=SECRET)


def test_example_of_the_rfc() -> None:
    server = exchange("SCRAM-SHA-256", user=kept("SCRAM-SHA-256"))
    client = ScramClient("SCRAM-SHA-256", "user", "pencil")
    first, _ = server.respond(client.first())
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first == f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    proof = f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    assert client.final(first) == proof
    final, authenticated = server.respond(proof)
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert authenticated == AuthenticatedUser("user")


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("user", ["alice", "a=b,c"])
def test_both_mechanisms_and_odd_names(mechanism: str, user: str) -> None:
    server = Scram(mechanism, {user: kept(mechanism)}.get, nonce="n", secret=SECRET)
    client = ScramClient(mechanism, user, "pencil", gs2="y,,", more=",x=1")
    final, authenticated = server.respond(client.final(server.respond(client.first()).response))
    assert final.decode() == client.verifier
    assert authenticated == AuthenticatedUser(user)


def failure(server: Scram, client: ScramClient) -> AuthenticationFailed:
    challenge = server.respond(client.first()).response
    with pytest.raises(AuthenticationFailed) as caught:
        server.respond(client.final(challenge))
    return caught.value


def test_unknown_user_and_wrong_password_fail_alike() -> None:
    mechanism = "SCRAM-SHA-512"
    wrong = failure(
        exchange(mechanism, alice=kept(mechanism)), ScramClient(mechanism, "alice", "w")
    )
    unknown = failure(exchange(mechanism), ScramClient(mechanism, "alice", "w"))
    assert (str(unknown), unknown.client_message) == (str(wrong), wrong.client_message)
    # Not even the keys of the fake credential authenticate a client.
    ask = ScramClient(mechanism, "nobody", "w").first()
    challenges = {exchange(mechanism).respond(ask).response for _ in range(3)}
    assert len(challenges) == 1
    assert f"i={ITERATIONS_MIN}".encode() in challenges.pop()
    assert fake_credential(mechanism, "a", SECRET, ()) != fake_credential(
        mechanism, "b", SECRET, ()
    )
    assert fake_credential(mechanism, "a", SECRET, ()) != fake_credential(
        mechanism, "a", b"other", ()
    )


def shape_of(user: str, shapes: list[CredentialShape]) -> tuple[int, int]:
    found = fake_credential("SCRAM-SHA-256", user, SECRET, shapes)
    return found.iterations, len(found.salt)


def test_unknown_users_show_the_iterations_and_salt_length_of_known_ones() -> None:
    assert shape_of("a", []) == (ITERATIONS_MIN, SALT_BYTES)
    assert shape_of("a", [CredentialShape(8192, 25, 3)]) == (8192, 25)


def test_unknown_user_shapes_match_known_user_frequency() -> None:
    shapes = [CredentialShape(8192, 25, 9), CredentialShape(4096, 70, 1)]
    drawn = [shape_of(f"user-{number}", shapes) for number in range(1000)]
    assert set(drawn) == {(8192, 25), (4096, 70)}
    assert 850 < drawn.count((8192, 25)) < 950


def test_added_user_changes_few_unknown_user_responses() -> None:
    before = [CredentialShape(8192, 25, 9), CredentialShape(4096, 70, 1)]
    after = [CredentialShape(8192, 25, 10), CredentialShape(4096, 70, 1)]
    users = [f"user-{number}" for number in range(1000)]
    changed = [user for user in users if shape_of(user, before) != shape_of(user, after)]
    assert len(changed) < 30


def test_challenge_of_an_unknown_user_has_the_shape_of_a_known_one() -> None:
    mechanism = "SCRAM-SHA-512"
    server = Scram(
        mechanism,
        lambda _: None,
        nonce="n",
        secret=SECRET,
        shapes=lambda: [CredentialShape(10_000, 32, 5)],
    )
    challenge = server.respond(ScramClient(mechanism, "nobody", "w").first()).response.decode()
    fields = dict(part.split("=", 1) for part in challenge.split(","))
    assert fields["i"] == "10000"
    assert len(base64.b64decode(fields["s"])) == 32


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=,r=x",
        b"n,,n=alice",
        b"n,,n=a=41,r=x",
        b"p=tls-unique,,n=alice,r=x",
        b"n,,m=ext,n=alice,r=x",
        b"n,a=bob,n=alice,r=x",
        b"\xff",
    ],
)
def test_malformed_client_first_message_fails(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        exchange("SCRAM-SHA-256", alice=kept("SCRAM-SHA-256")).respond(first)


@pytest.mark.parametrize(
    ("before", "after"), [("c=biws", "c=eSws"), ("r=rOpr", "r=rOpx"), (",p=", ",q="), ("p=", "p=A")]
)
def test_final_message_must_fit_the_first(before: str, after: str) -> None:
    server = exchange("SCRAM-SHA-256", user=kept("SCRAM-SHA-256"))
    client = ScramClient("SCRAM-SHA-256", "user", "pencil")
    final = client.final(server.respond(client.first()).response).decode()
    with pytest.raises(AuthenticationFailed):
        server.respond(final.replace(before, after, 1).encode())


def test_credential_round_trips_as_text_and_invalid_text_is_none() -> None:
    made = kept("SCRAM-SHA-512", iterations=8192)
    text = credential_text(made)
    assert text.startswith("salt=W22ZaJ0SNY7soEsUEjb6gQ==,stored_key=")
    assert text.endswith(",iterations=8192")
    assert parse_credential(text) == made
    partly = ("", "salt=!,stored_key=,server_key=,iterations=1", "iterations=4")
    for nonsense in (*partly, text + "x", text + ",a=test", f"{text},{text}"):
        assert parse_credential(nonsense) is None


def test_token_is_proven_with_its_owner_and_end() -> None:
    mechanism = "SCRAM-SHA-256"
    token = TokenCredential(kept(mechanism), "alice", 5)
    server = Scram(
        mechanism, lambda _: None, nonce="n", secret=SECRET, find_token={"id": token}.get
    )
    client = ScramClient(mechanism, "id", "pencil", more=",tokenauth=true")
    _, authenticated = server.respond(client.final(server.respond(client.first()).response))
    assert authenticated == AuthenticatedUser("alice", 5, by_token=True)


@pytest.mark.parametrize("more", ["", ",tokenauth=false"])
def test_token_without_the_extension_is_an_unknown_user(more: str) -> None:
    mechanism = "SCRAM-SHA-256"
    token = TokenCredential(kept(mechanism), "alice", 5)
    server = Scram(
        mechanism, lambda _: None, nonce="n", secret=SECRET, find_token={"id": token}.get
    )
    failure(server, ScramClient(mechanism, "id", "pencil", more=more))
    of_user = exchange(mechanism, user=kept(mechanism))
    failure(of_user, ScramClient(mechanism, "user", "pencil", more=",tokenauth=true"))


# ------------------------------------------- Delegation tokens: times, secrets, and the stored form


ALICE, BOB = Principal("User", "alice"), Principal("User", "b:ob")
LIFETIMES = TokenLifetimes(max_ms=100, renewal_ms=10)
TOKEN = issue("t", ALICE, BOB, (BOB,), now_ms=1000, requested_ms=-1, lifetimes=LIFETIMES)


def test_new_token_expires_before_its_maximum_lifetime() -> None:
    assert (TOKEN.issued_ms, TOKEN.expires_ms, TOKEN.max_ms) == (1000, 1010, 1100)
    brief = issue("t", ALICE, BOB, (), now_ms=0, requested_ms=5, lifetimes=LIFETIMES)
    assert (brief.expires_ms, brief.max_ms) == (5, 5)


def test_token_expires_after_the_last_millisecond() -> None:
    assert not TOKEN.is_expired(1010)
    assert TOKEN.is_expired(1011)
    assert TOKEN.expiring(5000).expires_ms == TOKEN.max_ms


def test_times_do_not_overflow() -> None:
    assert later(TIMESTAMP_MAX - 1, 5) == TIMESTAMP_MAX


def test_only_owner_and_renewers_change_a_token() -> None:
    assert TOKEN.may_be_changed_by(ALICE)
    assert TOKEN.may_be_changed_by(BOB)
    assert not TOKEN.may_be_changed_by(Principal("Group", "alice"))


def test_secret_is_kafkas_hmac() -> None:
    assert token_hmac("key", "id") == hmac.new(b"key", b"id", hashlib.sha512).digest()


@pytest.mark.parametrize("mechanism", HASHES)
def test_credential_is_that_of_the_secret_as_password(mechanism: str) -> None:
    found = token_credential("key", "id", mechanism)
    password = base64.b64encode(token_hmac("key", "id")).decode()
    key = salted(mechanism, password, found.salt, found.iterations)
    assert found == credential(mechanism, key, found.salt, found.iterations)
    assert found.salt != token_credential("key", "other", mechanism).salt


def test_token_round_trips_in_its_stored_form() -> None:
    stored = encode_token(TOKEN)
    assert decode_token("t", stored) == TOKEN
    assert decode_token("t", encode_token(TOKEN._replace(renewers=()))) is not None
    for broken in ({}, {**stored, "owner": "alice"}, {**stored, "max.ms": "x"}):
        assert decode_token("t", broken) is None


@pytest.mark.parametrize("name", ["", "a\nb", "User:x", '"'])
def test_renewer_may_have_any_name(name: str) -> None:
    token = TOKEN._replace(renewers=(Principal("User", name), BOB))
    assert decode_token("t", encode_token(token)) == token


@pytest.mark.parametrize("renewers", ["", "User:bob", "{}", "[1]", '[["User"]]', "[" * 100_000])
def test_token_with_invalid_renewers_is_none(renewers: str) -> None:
    assert decode_token("t", {**encode_token(TOKEN), "renewers": renewers}) is None

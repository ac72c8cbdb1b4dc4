"""SASL against the broker's mechanisms and invalid servers; properties files and their errors."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.security.authentication import (
    AuthenticatedUser,
    AuthenticationFailed,
    Mechanism,
    Plain,
)
from minibroker.broker.security.oauth import OAuthBearer, TokenRules, unsecured
from minibroker.broker.security.scram import HASHES, Scram, credential, salted
from minibroker.client.connection import ClientSecurity
from minibroker.client.errors import InvalidClientConfig, ServerNotVerified
from minibroker.client.security import (
    SaslExchange,
    oauthbearer,
    plain,
    read_client_security,
    read_tls,
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


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"

Read = Callable[..., ClientSecurity]


@pytest.fixture
def read(properties: Callable[..., str]) -> Read:
    return lambda *lines: read_client_security(properties(*lines))


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA certificate, and a client certificate with its key."""
    folder = tmp_path_factory.mktemp("authority")
    made = trustme.CA()
    made.cert_pem.write_to_path(folder / "authority.pem")
    carol = made.issue_cert(common_name="carol")
    carol.private_key_and_cert_chain_pem.write_to_path(folder / "carol.pem")
    return folder / "authority.pem"


def test_empty_properties_are_plaintext(read: Read) -> None:
    assert read("bootstrap.servers=x:1", "acks=all") == ClientSecurity()


def test_tls_verifies_the_host_unless_disabled(read: Read, authority: Path) -> None:
    lines = ("security.protocol=SSL", f"ssl.truststore.location={authority}")
    checking = read(*lines).tls
    trusting = read(*lines, "ssl.endpoint.identification.algorithm=").tls
    assert checking is not None
    assert trusting is not None
    assert (checking.check_hostname, trusting.check_hostname) == (True, False)
    assert len(checking.get_ca_certs()) == 1


def test_truststore_certificates_are_read_from_the_file(read: Read, authority: Path) -> None:
    text = authority.read_text().replace("\n", "\\n")
    tls = read("security.protocol=SSL", f"ssl.truststore.certificates={text}").tls
    assert tls is not None
    assert len(tls.get_ca_certs()) == 1


def test_tls_without_truststore_uses_system_authorities(read: Read) -> None:
    tls = read("security.protocol=SSL").tls
    assert tls is not None
    assert tls.check_hostname


def test_tls_is_read_without_sasl(properties: Callable[..., str], authority: Path) -> None:
    lines = ("security.protocol=SASL_SSL", f"ssl.truststore.location={authority}")
    tls = read_tls(properties(*lines))
    assert tls is not None
    assert len(tls.get_ca_certs()) == 1
    assert read_tls(properties("security.protocol=SASL_PLAINTEXT")) is None
    with pytest.raises(InvalidClientConfig, match=r"properties:2: ssl.truststore.location can't"):
        read_tls(properties("security.protocol=SSL", "ssl.truststore.location=/no/such"))


@pytest.mark.parametrize(
    ("mechanism", "module", "first"),
    [
        ("PLAIN", f'{PLAIN} username="alice" password="secret";', b"\0alice\0secret"),
        ("SCRAM-SHA-256", f'{SCRAM} username="a,b" password="s";', b"n,,n=a=2Cb,r="),
        ("SCRAM-SHA-512", f'{SCRAM} username="alice" password="s";', b"n,,n=alice,r="),
        ("OAUTHBEARER", f'{BEARER} unsecuredLoginStringClaim_sub="a";', b"n,,\x01auth=Bearer "),
    ],
)
def test_each_mechanism_starts_its_exchange(
    read: Read, mechanism: str, module: str, first: bytes
) -> None:
    lines = ("security.protocol=sasl_plaintext", f"sasl.mechanism={mechanism}")
    access = read(*lines, f"sasl.jaas.config={module}")
    assert (access.tls, access.mechanism) == (None, mechanism)
    assert access.start_exchange is not None
    assert next(access.start_exchange()).startswith(first)


def test_scram_nonces_differ(read: Read) -> None:
    jaas = f'sasl.jaas.config={SCRAM} username="alice" password="s";'
    access = read("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=SCRAM-SHA-256", jaas)
    assert access.start_exchange is not None
    assert next(access.start_exchange()) != next(access.start_exchange())


def test_token_file_is_read_for_each_exchange(read: Read, tmp_path: Path) -> None:
    file = tmp_path / "a token"
    url = f"sasl.oauthbearer.token.endpoint.url=file:{tmp_path}/a%20token"
    jaas = f"sasl.jaas.config={BEARER} ;"
    access = read("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER", jaas, url)
    assert access.start_exchange is not None
    for token in ("one", "another"):
        file.write_text(f"{token}\n")
        assert next(access.start_exchange()) == f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    file.unlink()
    with pytest.raises(
        InvalidClientConfig, match=r"client.properties:4: sasl.oauth.* can't be read"
    ):
        access.start_exchange()


SASL = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN")
TIMELESS = f'{BEARER} unsecuredLoginStringClaim_sub="a" unsecuredLoginLifetimeSeconds=x;'
OAUTH = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["security.protocol=TLS"], "properties:1: .*=TLS must be one of PLAINTEXT, SSL"),
        (["security.protocl=SSL"], "not supported; did you mean security.protocol?"),
        (["security.protocol=SASL_SSL"], "SASL_SSL needs sasl.mechanism, .* SCRAM-SHA-512"),
        ([SASL[0], "sasl.mechanism=GSSAPI"], "properties:2: .*GSSAPI must be one of PLAIN"),
        (SASL, f'PLAIN needs sasl.jaas.config={PLAIN} username="alice"'),
        ((*SASL, "sasl.jaas.config=x"), "properties:3: sasl.jaas.config must be a JAAS line"),
        ((*SASL, f'sasl.jaas.config={SCRAM} a="b";'), "PLAIN needs PlainLoginModule"),
        ((*SASL, f'sasl.jaas.config={PLAIN} username="u";'), "has no password; write"),
        ((*SASL, f'sasl.jaas.config={PLAIN} a="hush";'), "has no username and no password"),
        ((*OAUTH, f"sasl.jaas.config={BEARER} ;"), "has no unsecuredLoginStringClaim_sub"),
        (
            (*OAUTH, f"sasl.jaas.config={TIMELESS}"),
            "must be a number of seconds",
        ),
        (["security.protocol=SSL", "ssl.truststore.type=JKS"], "must be PEM; convert"),
        (["security.protocol=SSL", "ssl.truststore.location=/no/such"], "can't be read as PEM"),
        (["security.protocol=SSL", "ssl.keystore.location=/no/such"], "check ssl.key.password"),
        (["security.protocol=SSL", "ssl.truststore.certificates=none"], "can't be read as PEM"),
        (["security.protocol=SSL", "ssl.truststore.certificates="], "can't be read as PEM"),
    ],
)  # fmt: skip
def test_invalid_property_is_reported_with_its_line(read: Read, lines: list[str], why: str) -> None:
    with pytest.raises(InvalidClientConfig, match=why) as raised:
        read(*lines)
    assert "hush" not in str(raised.value)


def test_token_url_must_be_a_file(read: Read) -> None:
    url = "sasl.oauthbearer.token.endpoint.url=https://issuer/token"
    with pytest.raises(
        InvalidClientConfig, match=r"properties:4: .* must be a file with the token"
    ):
        read(*OAUTH, f"sasl.jaas.config={BEARER} ;", url)


def test_missing_file_is_named() -> None:
    with pytest.raises(InvalidClientConfig, match="/no/such: cannot be read: No such file"):
        read_client_security("/no/such")


def test_client_keystore_is_loaded(read: Read, authority: Path) -> None:
    keys = f"ssl.keystore.location={authority.with_name('carol.pem')}"
    assert read("security.protocol=SSL", keys).tls is not None

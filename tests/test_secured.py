"""Certificates, users and client configurations of a secured broker fit together."""

from __future__ import annotations

import json
import ssl
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from minibroker.broker.network.sasl import token_rules
from minibroker.broker.security.certificates import identity
from minibroker.broker.settings import Settings
from minibroker.client.configs import (
    client_config,
    keep_client_properties,
)
from minibroker.secured import (
    CertificateKind,
    ClientCertificateKind,
    InvalidSecurity,
    Secured,
    Tls,
    hosts_of,
    issue_certificate,
    issue_client_certificate,
    read_files,
    secured,
    secured_proxy,
    write_files,
)

PROTOCOLS = {
    ("none", None): "PLAINTEXT",
    ("server", None): "SSL",
    ("none", "PLAIN"): "SASL_PLAINTEXT",
    ("mutual", "SCRAM-SHA-512"): "SASL_SSL",
}


def written(folder: Path, tls: object = True, sasl: str | None = "scram-sha-512") -> Secured:
    made = secured(folder / "secrets", tls=tls, sasl=sasl)
    made = write_files(made)
    keep_client_properties(made)
    return made


@pytest.mark.parametrize("case", PROTOCOLS)
def test_protocol_follows_from_tls_and_mechanism(case: tuple[Tls, str | None]) -> None:
    assert Secured(Path("x"), *case).protocol == PROTOCOLS[case]


def test_proxy_in_the_folder_of_a_broker_leaves_its_clients_their_mechanism(tmp_path: Path) -> None:
    broker = written(tmp_path, tls=False, sasl="scram-sha-512")
    proxy = write_files(secured_proxy(broker.folder, tls=True))
    assert (proxy.protocol, proxy.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert proxy.password == broker.password
    assert read_files(broker.folder) == proxy
    assert secured_proxy(tmp_path / "another", tls="mutual").protocol == "SSL"


@pytest.mark.parametrize(("tls", "sasl"), [(True, None), ("mutual", "plain"), (False, "PLAIN")])
def test_broker_accepts_the_settings(tmp_path: Path, tls: object, sasl: str | None) -> None:
    made = written(tmp_path, tls, sasl)
    pairs = [f"listeners={made.protocol}://127.0.0.1:0"]
    pairs += [f"{name}={value}" for name, value in made.settings().items()]
    assert Settings.from_sources(pairs=pairs).problems() == []


def test_files_are_made_once_and_are_their_owners(tmp_path: Path) -> None:
    made = written(tmp_path)
    before = {path.name: path.read_bytes() for path in made.folder.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in made.folder.iterdir()} == {0o600}
    assert made.folder.stat().st_mode & 0o777 == 0o700
    write_files(made)
    assert {path.name: path.read_bytes() for path in made.folder.iterdir()} == before
    assert read_files(made.folder) == made


def test_password_stays_if_the_mechanism_changes(tmp_path: Path) -> None:
    before = written(tmp_path)
    password = before.password
    after = written(tmp_path, sasl="plain")
    assert (after.password, after.mechanism) == (password, "PLAIN")
    assert read_files(after.folder) == after


def test_settings_contain_no_password(tmp_path: Path) -> None:
    made = written(tmp_path)
    assert made.password not in json.dumps(made.settings())


@pytest.mark.parametrize(
    ("tls", "sasl", "message"),
    [
        ("maybe", None, "tls must be true, false or 'mutual', not 'maybe'"),
        (True, "scram-sha512", "no mechanism 'scram-sha512'; did you mean 'scram-sha-512'?"),
        (True, "x", "no mechanism 'x'; known are plain, scram-sha-256, scram-sha-512"),
    ],
)
def test_wrong_option_is_rejected_with_advice(tls: object, sasl: str | None, message: str) -> None:
    with pytest.raises(InvalidSecurity) as raised:
        secured(Path("x"), tls=tls, sasl=sasl)
    assert message in str(raised.value)


def test_unknown_client_and_folder_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidSecurity, match=r"no client 'jaav'; did you mean 'java'\?"):
        client_config(Secured(tmp_path, "none", None), "jaav", "")
    with pytest.raises(InvalidSecurity, match="no broker was started with --tls or --sasl"):
        read_files(tmp_path)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(InvalidSecurity, match=r"pip install 'minibroker\[tls\]'"):
        written(tmp_path)
    written(tmp_path / "other", tls=False)
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(InvalidSecurity, match=r"pip install 'minibroker\[oauth\]'"):
        written(tmp_path / "tokens", tls=False, sasl="oauth")


# Hosts and certificates ---------------------------------------------------------------------------


def names_of(file: Path) -> set[str]:
    return set(identity(file.read_text()).names)


def test_certificate_is_renewed_by_its_authority_for_another_host(tmp_path: Path) -> None:
    before = written(tmp_path)
    authority = Path(before.authority).read_bytes()
    client = Path(before.certificate).read_bytes()
    server = before.folder / "server.pem"
    assert names_of(server) == {"DNS:localhost", "IP:127.0.0.1", "IP:::1"}
    after = write_files(before, ["kafka", "10.0.0.9"])
    assert names_of(server) >= {"DNS:kafka", "IP:10.0.0.9", "DNS:localhost"}
    assert Path(after.authority).read_bytes() == authority
    assert Path(after.certificate).read_bytes() == client
    renewed = server.read_bytes()
    assert write_files(before, ["kafka"]) == after
    assert server.read_bytes() == renewed


def test_host_that_no_certificate_can_name_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidSecurity, match=r"no certificate can name one of .*a_b"):
        write_files(secured(tmp_path / "new", tls=True), ["a_b"])


def test_hosts_of_listeners_are_those_of_the_broker() -> None:
    listeners = ["SASL_SSL://kafka:9093", "SSL://[::1]:0", "SSL://0.0.0.0:1", "SSL://:2", "X://*:1"]
    assert hosts_of([*listeners, ""]) == ["kafka", "::1"]


def handshake(made: Secured, server: Path, host: str, client_file: Path | None = None) -> None:
    """A handshake in memory of a client with a server that has a key and certificate."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(server)
    here = ssl.create_default_context(cafile=made.authority)
    if client_file is not None:
        there.load_verify_locations(made.authority)
        there.verify_mode = ssl.CERT_REQUIRED
        here.load_cert_chain(client_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = here.wrap_bio(to_client, to_server, server_hostname=host)
    peer = there.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(2):
        for side in (client, peer):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()


CERTIFICATES = {
    "expired": "certificate has expired",
    "not_yet_valid": "certificate is not yet valid",
    "wrong_host": "certificate is not valid for 'localhost'",
    "untrusted": "unable to get local issuer certificate",
}


@pytest.mark.parametrize("kind", CERTIFICATES)
def test_wrong_certificate_is_rejected_for_its_reason(
    tmp_path: Path, kind: CertificateKind
) -> None:
    made = written(tmp_path)
    handshake(made, made.folder / "server.pem", "localhost")
    wrong = issue_certificate(made, kind)
    with pytest.raises(ssl.SSLCertVerificationError, match=CERTIFICATES[kind]):
        handshake(made, wrong, "localhost")
    assert issue_certificate(made) == made.folder / "server.pem"
    handshake(made, made.folder / "server.pem", "localhost")


@pytest.mark.parametrize("kind", sorted(set(CERTIFICATES) - {"wrong_host"}))
def test_wrong_client_certificate_is_rejected_for_its_reason(
    tmp_path: Path, kind: ClientCertificateKind
) -> None:
    made = written(tmp_path, "mutual")
    wrong = issue_client_certificate(made, kind)
    assert wrong.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ssl.SSLCertVerificationError, match=CERTIFICATES[kind]):
        handshake(made, made.folder / "server.pem", "localhost", wrong)
    handshake(made, made.folder / "server.pem", "localhost", Path(made.certificate))


def test_client_certificate_is_for_a_user_and_leaves_others_alone(tmp_path: Path) -> None:
    made = written(tmp_path, "mutual")
    before = {path.name: path.read_bytes() for path in made.folder.iterdir()}
    files = [issue_client_certificate(made, "valid", user) for user in ("a/b ../c", None, None)]
    for file, user in zip(files, ("a/b ../c", made.user, made.user), strict=True):
        assert f"'{user}'" in str(identity(file.read_text()).subject)
    assert len({made.folder, *(file.parent for file in files)}) == 1
    assert len({*files}) == 3
    assert (
        before.items() <= {path.name: path.read_bytes() for path in made.folder.iterdir()}.items()
    )
    for file in files:
        handshake(made, made.folder / "server.pem", "localhost", file)


def test_user_that_no_certificate_can_name_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidSecurity, match="no certificate can be for the user 'xxx"):
        issue_client_certificate(written(tmp_path, "mutual"), "valid", "x" * 65)


# OAuth --------------------------------------------------------------------------------------------


@pytest.fixture
def oauth(tmp_path: Path) -> Secured:
    return written(tmp_path, "mutual", "oauth")._replace(issuer="http://there:1/v1/oauth")


def test_broker_expects_tokens_of_the_issuer(oauth: Secured) -> None:
    pairs = ["listeners=SASL_SSL://127.0.0.1:0"]
    pairs += [f"{name}={value}" for name, value in oauth.settings().items()]
    settings = Settings.from_sources(pairs=pairs)
    _, rules = token_rules(settings, "SASL_SSL")
    assert (rules.signed, rules.audience) == (True, frozenset({"kafka"}))

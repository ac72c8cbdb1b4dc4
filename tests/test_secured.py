"""Certificates, users and client configurations of a secured broker fit together."""

from __future__ import annotations

import json
import ssl
import sys
from pathlib import Path

import pytest

from minibroker.broker.security.client_properties import read_client_properties, tls_context
from minibroker.broker.settings import Settings
from minibroker.secured import (
    CLIENTS,
    InvalidSecurity,
    Secured,
    Tls,
    client_config,
    config_text,
    read_files,
    secured,
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
    write_files(made)
    return made


@pytest.mark.parametrize("case", PROTOCOLS)
def test_protocol_follows_from_tls_and_mechanism(case: tuple[Tls, str | None]) -> None:
    assert Secured(Path("x"), *case).protocol == PROTOCOLS[case]


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


@pytest.mark.parametrize("library", CLIENTS)
@pytest.mark.parametrize("tls", [True, "mutual"])
def test_every_client_gets_server_authority_and_password(
    tmp_path: Path, library: str, tls: object
) -> None:
    made = written(tmp_path, tls)
    config = client_config(made, library.upper(), "localhost:1,localhost:2")
    shown = str(config).replace("\\n", "\n")
    for wanted in ("localhost:1", "localhost:2", made.password, "test"):
        assert wanted in shown
    is_text = library == "kafkajs"
    authority = Path(made.authority).read_text() if is_text else made.authority
    key = Path(made.certificate).read_text() if is_text else made.certificate
    if library == "aiokafka":
        assert config["ssl_context"].verify_mode == ssl.CERT_REQUIRED
    else:
        assert authority in shown
        assert (key in shown) == (tls == "mutual")
    assert made.password in config_text(made, library, "localhost:1")


def test_properties_are_read_by_the_commands(tmp_path: Path) -> None:
    made = written(tmp_path, "mutual")
    read = read_client_properties(made.properties)
    assert (read.protocol, read.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert tls_context(read).get_ca_certs()


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

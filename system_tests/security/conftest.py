"""One secured broker for these tests, its certificates, and its users.

Tests that need such a broker with other settings start it with `securing`.

Owns the settings that both sides must agree on; the tests own the expectations. Invariant:
certificates and keys are made for the run and are in a temporary folder only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from system_tests.harness.brokers import RunningBroker, start_minibroker

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
MODULES = {
    "PLAIN": JAAS,
    "SCRAM-SHA-256": SCRAM,
    "SCRAM-SHA-512": SCRAM,
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required",
}
"""The properties of a client's authentication, by mechanism."""
PASSWORDS = {"alice": "wonderland", "bob": "builder"}
ROOT = "ANONYMOUS"
"""The principal of connections over PLAINTEXT, which these tests use for administration."""


class Secured(NamedTuple):
    """A broker, the address of each listener, and the authority of its certificate."""

    broker: RunningBroker
    plaintext: str
    sasl_ssl: str
    ssl: str
    authority: Path
    folder: Path

    def client(self, folder: Path, mechanism: str, user: str, password: str, *more: str) -> str:
        """Write a properties file with which a client authenticates, in Java or not."""
        options = f'username="{user}" password="{password}"'
        if mechanism == "OAUTHBEARER":
            options = f'unsecuredLoginStringClaim_sub="{user}"'
        lines = ["security.protocol=SASL_SSL", f"sasl.mechanism={mechanism}"]
        lines += [f"sasl.jaas.config={MODULES[mechanism]} {options};"]
        return self.proven(folder, *lines, *more)

    def proven(self, folder: Path, *lines: str) -> str:
        """A file of properties of a client that trusts this broker."""
        file = folder / "client.properties"
        file.write_text("\n".join([*lines, f"ssl.truststore.location={self.authority}"]))
        return str(file)


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The broker that all these tests share."""
    with securing(tmp_path_factory.mktemp("secured")) as running:
        yield running


@contextmanager
def securing(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[Secured]:
    """A secured broker with its certificates in a folder; no secret may have been printed."""
    settings = {**secured_settings(folder), **(more or {})}
    listeners = [
        word for name in ("SASL_SSL", "SSL") for word in ("--listener", f"{name}://127.0.0.1:0")
    ]
    running = start_minibroker(*listeners, settings=settings)
    plaintext, sasl_ssl, with_tls = running.bootstrap_servers.split(",")
    yield Secured(running, plaintext, sasl_ssl, with_tls, folder / "authority.pem", folder)
    try:
        assert running.stop() == 0
        printed = running.printed()
        assert "Traceback" not in printed
        assert not any(secret in printed for secret in PASSWORDS.values())
    finally:
        running.forget()


def secured_settings(folder: Path) -> dict[str, str]:
    """Return the settings of a secured broker, whose certificates are written to a folder."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    _write(authority.issue_cert("carol.example", common_name="carol"), folder / "carol.pem")
    users = " ".join(f'user_{name}="{secret}"' for name, secret in PASSWORDS.items())
    return {
        "group.initial.rebalance.delay.ms": "0",
        "ssl.keystore.location": f"{folder}/server.pem",
        "ssl.truststore.location": f"{folder}/authority.pem",
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]*),.*$/$1/L",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{JAAS} {users};",
        "connections.max.reauth.ms": "3000",
        "delegation.token.secret.key": "a key of the tests",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ROOT};User:alice;User:carol",
    }


def _write(issued: trustme.LeafCert, file: Path) -> None:
    """In the one form of keys that clients in Java read, too."""
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    pkcs8 = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(pkcs8 + b"".join(each.bytes() for each in issued.cert_chain_pems))

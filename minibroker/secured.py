"""TLS and SASL in one line: a certificate authority, certificates and a user, for a test broker.

Owns the files, the settings of the broker, and the configurations of clients in each library's own
names. It must never start a broker nor connect to one. Invariant: the files of a folder are made
once and fit together; keys and passwords are readable by their owner only, and no settings contain
a password but by a reference to a file.
"""

from __future__ import annotations

import difflib
import json
import os
import secrets
import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

Tls: TypeAlias = Literal["none", "server", "mutual"]

MECHANISMS: Final = {"plain": "PLAIN", "scram-sha-256": "SCRAM-SHA-256"} | {
    "scram-sha-512": "SCRAM-SHA-512"
}
"""Mechanisms by the names that options have."""

USER: Final = "test"
HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""Names and addresses in each server certificate."""

MISSING: Final = (
    "TLS needs the package trustme, which creates certificates: pip install 'minibroker[tls]'"
)

_AUTHORITY: Final = "ca.pem"
_SERVER: Final = "server.pem"
_CLIENT: Final = "client.pem"
_PROPERTIES: Final = "client.properties"
_KEPT: Final = "secured.json"
_PASSWORD: Final = "secret.properties"  # noqa: S105 - a file name
_JAAS: Final = "jaas"
_ROOT_MODULE: Final = "org.apache.kafka.common.security"
_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


class InvalidSecurity(ValueError):
    """An option that names no mechanism, or something that is missing; the message says what."""


class Secured(NamedTuple):
    """What a secured broker and its clients have in common."""

    folder: Path
    tls: Tls
    mechanism: str | None
    user: str = USER

    @property
    def protocol(self) -> str:
        """Kafka's security protocol."""
        if self.mechanism is None:
            return "PLAINTEXT" if self.tls == "none" else "SSL"
        return "SASL_PLAINTEXT" if self.tls == "none" else "SASL_SSL"

    @property
    def authority(self) -> str:
        """The file of the certificate authority."""
        return str(self.folder / _AUTHORITY)

    @property
    def certificate(self) -> str:
        """The file with the client's key and certificates."""
        return str(self.folder / _CLIENT)

    @property
    def properties(self) -> str:
        """The file for Java clients, and for ``--command-config`` of minibroker's commands."""
        return str(self.folder / _PROPERTIES)

    @property
    def password(self) -> str:
        """The password of the user."""
        text = (self.folder / _PASSWORD).read_text()
        return text.partition('password="')[2].partition('"')[0]

    def settings(self) -> dict[str, str]:
        """The settings of the broker, without listeners."""
        found: dict[str, str] = {}
        if self.tls != "none":
            found |= {
                "ssl.keystore.location": str(self.folder / _SERVER),
                "ssl.truststore.location": self.authority,
                "ssl.client.auth": "required" if self.tls == "mutual" else "none",
            }
        if self.mechanism is not None:
            name = f"listener.name.{self.protocol.lower()}.{self.mechanism.lower()}"
            found["sasl.enabled.mechanisms"] = self.mechanism
            found[f"{name}.sasl.jaas.config"] = f"${{file:{self.folder / _PASSWORD}:{_JAAS}}}"
        return found


def secured(folder: Path, *, tls: object = False, sasl: str | None = None) -> Secured:
    """Check what is wanted; `write_files` makes it. Raises `InvalidSecurity`.

    ``tls`` is true, false or "mutual", with which clients need a certificate.
    """
    if tls not in (False, True, None, "mutual"):
        raise InvalidSecurity(f"tls must be true, false or 'mutual', not {tls!r}")
    mechanism = None if sasl is None else MECHANISMS.get(sasl.lower())
    if sasl is not None and mechanism is None:
        raise InvalidSecurity(f"there is no mechanism {sasl!r}{_advice(sasl, MECHANISMS)}")
    kind: Tls = "mutual" if tls == "mutual" else ("server" if tls else "none")
    return Secured(folder, kind, mechanism)


def _advice(given: str, known: Iterable[str]) -> str:
    names = list(known)
    similar = difflib.get_close_matches(given.lower(), names, n=1)
    return f"; did you mean {similar[0]!r}?" if similar else f"; known are {', '.join(names)}"


# Files --------------------------------------------------------------------------------------------


def write_files(made: Secured, hosts: Iterable[str] = ()) -> None:
    """Write the files that are missing in the folder; ``hosts`` are further names of the broker.

    Raises `InvalidSecurity` without the package that makes certificates, and ``OSError``.
    """
    made.folder.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    if made.mechanism is not None:
        _write_password(made)
    if made.tls != "none" and not (made.folder / _AUTHORITY).exists():
        _write_certificates(made, hosts)
    java = _java(made, "")
    del java["bootstrap.servers"]
    lines = "".join(f"{name}={value}\n" for name, value in java.items())
    _write(made.folder / _PROPERTIES, lines.encode())
    kept = {"tls": made.tls, "mechanism": made.mechanism, "user": made.user}
    _write(made.folder / _KEPT, json.dumps(kept).encode())


def read_files(folder: Path) -> Secured:
    """Return what `write_files` has written. Raises `InvalidSecurity`."""
    try:
        return Secured(folder, **json.loads((folder / _KEPT).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidSecurity(
            f"{folder}: no broker was started with --tls or --sasl and this folder ({error})"
        ) from None


def _write_password(made: Secured) -> None:
    password = made.password if (made.folder / _PASSWORD).exists() else secrets.token_urlsafe(18)
    module = _module(str(made.mechanism))
    line = f'{module} required username="{made.user}" password="{password}"'
    _write(made.folder / _PASSWORD, f'{_JAAS}={line} user_{made.user}="{password}";\n'.encode())


def _write_certificates(made: Secured, hosts: Iterable[str]) -> None:
    try:
        import trustme
    except ModuleNotFoundError:
        raise InvalidSecurity(MISSING) from None
    authority = trustme.CA(organization_name="minibroker")
    server = authority.issue_cert(*dict.fromkeys((*HOSTS, *hosts)))
    # Java rejects a certificate without alternative names.
    client = authority.issue_cert(f"{made.user}.localhost", common_name=made.user)
    chain = b"".join(each.bytes() for each in client.cert_chain_pems)
    _write(made.folder / _SERVER, server.private_key_and_cert_chain_pem.bytes())
    _write(made.folder / _CLIENT, _for_java(client.private_key_pem.bytes()) + chain)
    _write(made.folder / _AUTHORITY, authority.cert_pem.bytes())  # Last: now all are there.


def _for_java(key: bytes) -> bytes:
    """A key in PKCS #8, the only format that Java reads."""
    from cryptography.hazmat.primitives import serialization

    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE), "wb") as file:
        file.write(content)
    os.replace(new, path)


def _module(mechanism: str) -> str:
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    return f"{_ROOT_MODULE}.{kind}LoginModule"


# Clients ------------------------------------------------------------------------------------------


def client_config(made: Secured, library: str, bootstrap_servers: str) -> dict[str, Any]:
    """The configuration of a client in the names of its library. Raises `InvalidSecurity`."""
    form = _CLIENTS.get(library.lower())
    if form is None:
        raise InvalidSecurity(f"there is no client {library!r}{_advice(library, _CLIENTS)}")
    return form(made, bootstrap_servers)


def _librdkafka(made: Secured, servers: str) -> dict[str, Any]:
    config = {"bootstrap.servers": servers, "security.protocol": made.protocol.lower()}
    if made.tls != "none":
        config["ssl.ca.location"] = made.authority
    if made.tls == "mutual":
        config["ssl.certificate.location"] = config["ssl.key.location"] = made.certificate
    if made.mechanism is not None:
        config |= {"sasl.mechanism": made.mechanism, "sasl.username": made.user}
        config["sasl.password"] = made.password
    return config


def _kafka_python(made: Secured, servers: str) -> dict[str, Any]:
    config: dict[str, Any] = {"bootstrap_servers": servers, "security_protocol": made.protocol}
    if made.tls != "none":
        config["ssl_cafile"] = made.authority
    if made.tls == "mutual":
        config["ssl_certfile"] = config["ssl_keyfile"] = made.certificate
    return config | _python_sasl(made)


def _aiokafka(made: Secured, servers: str) -> dict[str, Any]:
    config: dict[str, Any] = {"bootstrap_servers": servers, "security_protocol": made.protocol}
    if made.tls != "none":
        context = config["ssl_context"] = ssl.create_default_context(cafile=made.authority)
        if made.tls == "mutual":
            context.load_cert_chain(made.certificate)
    return config | _python_sasl(made)


def _python_sasl(made: Secured) -> dict[str, Any]:
    if made.mechanism is None:
        return {}
    return {
        "sasl_mechanism": made.mechanism,
        "sasl_plain_username": made.user,
        "sasl_plain_password": made.password,
    }


def _java(made: Secured, servers: str) -> dict[str, Any]:
    config = {"bootstrap.servers": servers, "security.protocol": made.protocol}
    if made.tls != "none":
        config |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": made.authority}
    if made.tls == "mutual":
        config |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": made.certificate}
    if made.mechanism is not None:
        login = f'username="{made.user}" password="{made.password}"'
        config["sasl.mechanism"] = made.mechanism
        config["sasl.jaas.config"] = f"{_module(made.mechanism)} required {login};"
    return config


def _kafkajs(made: Secured, servers: str) -> dict[str, Any]:
    config: dict[str, Any] = {"brokers": servers.split(",")}
    if made.tls != "none":
        ca = config["ssl"] = {"ca": [Path(made.authority).read_text()]}
        if made.tls == "mutual":
            ca["key"] = ca["cert"] = [Path(made.certificate).read_text()]
    if made.mechanism is not None:
        name = made.mechanism.lower()
        config["sasl"] = {"mechanism": name, "username": made.user, "password": made.password}
    return config


_CLIENTS: Final[Mapping[str, Callable[[Secured, str], dict[str, Any]]]] = {
    "confluent-kafka": _librdkafka,
    "librdkafka": _librdkafka,
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
    "java": _java,
    "kafkajs": _kafkajs,
}
CLIENTS: Final = tuple(_CLIENTS)


def config_text(made: Secured, library: str, bootstrap_servers: str) -> str:
    """The configuration of a client as text: properties, or JSON where the library has objects.

    Raises `InvalidSecurity`.
    """
    config = client_config(made, library, bootstrap_servers)
    config.pop("ssl_context", None)
    if library.lower() in ("java", "librdkafka", "confluent-kafka"):
        return "\n".join(f"{name}={value}" for name, value in config.items())
    return json.dumps(config, indent=2)

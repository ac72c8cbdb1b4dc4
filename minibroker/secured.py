"""TLS and SASL in one line: a certificate authority, certificates, a user and a token issuer.

Owns the files of a test broker and its settings for them. It must never start a broker nor connect
to one. Invariant: the files of a folder are made once and fit together, and a certificate that
lacks a name of the broker is renewed by the same authority; keys and passwords are readable by
their owner only, and no settings contain a password but by a reference to a file.
"""

from __future__ import annotations

import difflib
import json
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from minibroker.token_issuer import (
    AUDIENCE,
    JWKS,
    NoTokenLibrary,
    TokenIssuer,
    write_private,
)

if TYPE_CHECKING:
    import trustme

Tls: TypeAlias = Literal["none", "server", "mutual"]

CertificateKind = Literal["valid", "expired", "not_yet_valid", "wrong_host", "untrusted"]
ClientCertificateKind = Literal["valid", "expired", "not_yet_valid", "untrusted"]

OAUTH: Final = "OAUTHBEARER"
MECHANISMS: Final = {
    "plain": "PLAIN",
    "scram-sha-256": "SCRAM-SHA-256",
    "scram-sha-512": "SCRAM-SHA-512",
    "oauth": OAUTH,
}
"""Mechanisms by the names that options have."""

USER: Final = "test"
HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""Names and addresses in each server certificate."""

MISSING: Final = (
    "TLS needs the package trustme, which creates certificates: pip install 'minibroker[tls]'"
)

OTHER_HOST: Final = "another.invalid"
"""The only name in a certificate for another host."""

_EVERYWHERE: Final = ("", "*", "0.0.0.0", "::")  # noqa: S104 - to be left out
"""Hosts of listeners that are no names of the broker."""

_AUTHORITY: Final = "ca.pem"
_AUTHORITY_KEY: Final = "ca-key.pem"
_SERVER: Final = "server.pem"
_SERVERS: Final[Mapping[CertificateKind, str]] = {
    "valid": _SERVER,
    "expired": "server-expired.pem",
    "not_yet_valid": "server-not-yet-valid.pem",
    "wrong_host": "server-wrong-host.pem",
    "untrusted": "server-untrusted.pem",
}
_CLIENT: Final = "client.pem"
_PROPERTIES: Final = "client.properties"
_KEPT: Final = "secured.json"
_PASSWORD: Final = "secret.properties"  # noqa: S105 - a file name
_JAAS: Final = "jaas"
_DIRECTORY_MODE: Final = 0o700
_VALIDITY: Final = {
    "expired": (datetime(2000, 1, 1, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=UTC)),
    "not_yet_valid": (datetime(2900, 1, 1, tzinfo=UTC), datetime(2901, 1, 1, tzinfo=UTC)),
}


class InvalidSecurity(ValueError):
    """An option that names no mechanism, or something that is missing; the message says what."""


class Secured(NamedTuple):
    """What a secured broker and its clients have in common."""

    folder: Path
    tls: Tls
    mechanism: str | None
    user: str = USER
    hosts: tuple[str, ...] = ()
    """Names and addresses in the server's certificate."""
    issuer: str = ""
    """The URL of the token issuer, which is known when the broker runs."""

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
                # Certificates that are presented on request name other hosts.
                "ssl.allow.dn.changes": "true",
                "ssl.allow.san.changes": "true",
            }
        if self.mechanism is not None:
            name = f"listener.name.{self.protocol.lower()}.{self.mechanism.lower()}"
            found["sasl.enabled.mechanisms"] = self.mechanism
            if self.mechanism == OAUTH:
                jwks = (self.folder / JWKS).absolute().as_uri()
                found[f"{name}.sasl.oauthbearer.jwks.endpoint.url"] = jwks
                found[f"{name}.sasl.oauthbearer.expected.audience"] = AUDIENCE
            else:
                found[f"{name}.sasl.jaas.config"] = f"${{file:{self.folder / _PASSWORD}:{_JAAS}}}"
        return {**found, "control.security.dir": str(self.folder)} if found else {}


def secured(folder: Path, *, tls: object = False, sasl: str | None = None) -> Secured:
    """Check what is wanted; `write_files` makes it. Raises `InvalidSecurity`.

    ``tls`` is true, false or "mutual", with which clients need a certificate.
    """
    if tls not in (False, True, None, "mutual"):
        raise InvalidSecurity(f"tls must be true, false or 'mutual', not {tls!r}")
    mechanism = None if sasl is None else MECHANISMS.get(sasl.lower())
    if sasl is not None and mechanism is None:
        raise InvalidSecurity(f"there is no mechanism {sasl!r}{advice(sasl, MECHANISMS)}")
    kind: Tls = "mutual" if tls == "mutual" else ("server" if tls else "none")
    return Secured(folder, kind, mechanism)


def secured_proxy(folder: Path, *, tls: object) -> Secured:
    """Check what is wanted of a proxy; `write_files` makes it. Raises `InvalidSecurity`.

    SASL passes through a proxy, so its clients have the mechanism and the user of a broker with the
    same folder.
    """
    made = secured(folder, tls=tls)
    if not (folder / _KEPT).exists():
        return made
    kept = read_files(folder)
    return made._replace(mechanism=kept.mechanism, user=kept.user, issuer=kept.issuer)


def advice(given: str, known: Iterable[str]) -> str:
    """Return a hint for a name that is not known."""
    names = list(known)
    similar = difflib.get_close_matches(given.lower(), names, n=1)
    return f"; did you mean {similar[0]!r}?" if similar else f"; known are {', '.join(names)}"


# Files --------------------------------------------------------------------------------------------


def hosts_of(listeners: Iterable[str]) -> list[str]:
    """Return the hosts in a list of listeners, such as ``SSL://kafka:9093``."""
    # A scheme with an underscore is none for urlsplit.
    hosts = (urlsplit(each.partition(":")[2]).hostname or "" for each in listeners)
    return [host for host in hosts if host not in _EVERYWHERE]


def write_files(made: Secured, hosts: Iterable[str] = ()) -> Secured:
    """Write the files that are missing in the folder; ``hosts`` are further names of the broker.

    Raises `InvalidSecurity` without a package that makes certificates or tokens, and ``OSError``.
    """
    made.folder.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    if made.mechanism is not None:
        _write_password(made)
    if made.mechanism == OAUTH:
        try:
            TokenIssuer(made.folder).create()
        except NoTokenLibrary as error:
            raise InvalidSecurity(str(error)) from None
    known = _read_kept(made.folder).hosts if (made.folder / _KEPT).exists() else ()
    made = made._replace(hosts=known)
    if made.tls != "none":
        made = made._replace(hosts=tuple(dict.fromkeys((*HOSTS, *known, *hosts))))
        _write_certificates(made, is_renewed=made.hosts != known)
    keep(made)
    return made


def keep(made: Secured) -> None:
    """Write what `read_files` returns."""
    kept = {name: value for name, value in made._asdict().items() if name != "folder"}
    write_private(made.folder / _KEPT, json.dumps(kept).encode())


def read_files(folder: Path) -> Secured:
    """Return what `write_files` has written. Raises `InvalidSecurity`."""
    try:
        return _read_kept(folder)
    except FileNotFoundError:
        text = "no broker was started with --tls or --sasl and this folder"
        raise InvalidSecurity(f"{folder}: {text}; start one: minibroker start --tls") from None
    except (OSError, ValueError, TypeError) as error:
        raise InvalidSecurity(
            f"{folder}: no broker was started with --tls or --sasl and this folder ({error})"
        ) from None


def _read_kept(folder: Path) -> Secured:
    kept = json.loads((folder / _KEPT).read_text())
    return Secured(folder, **{**kept, "hosts": tuple(kept.get("hosts", ()))})


def _write_password(made: Secured) -> None:
    password = made.password if (made.folder / _PASSWORD).exists() else secrets.token_urlsafe(18)
    module = login_module(str(made.mechanism))
    line = f'{module} required username="{made.user}" password="{password}"'
    content = f'{_JAAS}={line} user_{made.user}="{password}";\n'
    write_private(made.folder / _PASSWORD, content.encode())


# Certificates -------------------------------------------------------------------------------------


def _write_certificates(made: Secured, *, is_renewed: bool) -> None:
    has_authority = (made.folder / _AUTHORITY).exists()
    if has_authority and not is_renewed:
        return
    _trustme()
    import trustme

    if has_authority and (made.folder / _AUTHORITY_KEY).exists():
        issue_certificate(made)
        return
    authority = trustme.CA(organization_name="minibroker")
    write_private(made.folder / _CLIENT, _client_pem(authority, made.user, "valid"))
    write_private(made.folder / _AUTHORITY_KEY, authority.private_key_pem.bytes())
    _issue(authority, made, "valid")
    write_private(made.folder / _AUTHORITY, authority.cert_pem.bytes())  # Last: now all are there.


def issue_certificate(made: Secured, kind: CertificateKind = "valid") -> Path:
    """Write a new key and certificate of the server, and return their file.

    Raises `InvalidSecurity`.
    """
    return _issue(_authority(made, kind), made, kind)


def issue_client_certificate(
    made: Secured, kind: ClientCertificateKind = "valid", user: str | None = None
) -> Path:
    """Write a new key and certificate of a client to a new file, and return the file.

    ``user`` is the certificate's common name, by default that of the broker's clients.
    Raises `InvalidSecurity`.
    """
    pem = _client_pem(_authority(made, kind), user or made.user, kind)
    path = made.folder / f"client-{kind.replace('_', '-')}-{secrets.token_hex(4)}.pem"
    write_private(path, pem)
    return path


def certificate_kind(location: str) -> CertificateKind:
    """Return the kind of the certificate in a file that `issue_certificate` has written."""
    name = Path(location).name
    return next((kind for kind, file in _SERVERS.items() if file == name), "valid")


def _authority(made: Secured, kind: CertificateKind) -> trustme.CA:
    """Return the authority that issues a kind of certificate."""
    _trustme()
    import trustme

    if kind == "untrusted":
        return trustme.CA(organization_name="another authority")
    files = (made.folder / _AUTHORITY, made.folder / _AUTHORITY_KEY)
    return trustme.CA.from_pem(*(file.read_bytes() for file in files))


def _client_pem(authority: trustme.CA, user: str, kind: ClientCertificateKind) -> bytes:
    """Return a client's key and its certificates."""
    first, last = _VALIDITY.get(kind, (None, None))
    try:
        # Java rejects a certificate without alternative names.
        client = authority.issue_cert(
            "client.localhost", common_name=user, not_before=first, not_after=last
        )
    except ValueError as error:
        raise InvalidSecurity(f"no certificate can be for the user {user!r}: {error}") from None
    chain = b"".join(each.bytes() for each in client.cert_chain_pems)
    return _for_java(client.private_key_pem.bytes()) + chain


def _issue(authority: trustme.CA, made: Secured, kind: CertificateKind) -> Path:
    hosts = (OTHER_HOST,) if kind == "wrong_host" else made.hosts
    first, last = _VALIDITY.get(kind, (None, None))
    try:
        leaf = authority.issue_cert(
            *hosts, common_name="minibroker", not_before=first, not_after=last
        )
    except ValueError as error:
        raise InvalidSecurity(
            f"no certificate can name one of {', '.join(hosts)}: {error}"
        ) from None
    path = made.folder / _SERVERS[kind]
    write_private(path, leaf.private_key_and_cert_chain_pem.bytes())
    return path


def _trustme() -> None:
    """Raise `InvalidSecurity` without the package that makes certificates."""
    try:
        import trustme  # noqa: F401
    except ModuleNotFoundError:
        raise InvalidSecurity(MISSING) from None


def _for_java(key: bytes) -> bytes:
    """A key in PKCS #8, the only format that Java reads."""
    from cryptography.hazmat.primitives import serialization

    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def login_module(mechanism: str) -> str:
    """Return Java's class for a mechanism."""
    kind = {"PLAIN": "plain.Plain", OAUTH: "oauthbearer.OAuthBearer"}.get(mechanism, "scram.Scram")
    return f"org.apache.kafka.common.security.{kind}LoginModule"

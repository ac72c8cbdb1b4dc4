"""Certificates and tokens of a test broker, also wrong ones: ``broker.certificates``, ``.tokens``.

Owns the calls of the control API about them. It must never make a certificate or a token itself.
Invariant: when a call returns, new connections see what it has changed, and open ones go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minibroker.client.control import Control
    from minibroker.secured import CertificateKind, ClientCertificateKind
    from minibroker.token_issuer import Algorithm, IssuedKind, TokenKind


class BrokerCertificates:
    """The certificate of a broker with ``tls=True``, and those of clients with "mutual"."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def present(self, kind: CertificateKind) -> dict[str, Any]:
        """Show new connections a "valid", "expired", "not_yet_valid", "wrong_host" or "untrusted"
        certificate.
        """
        return self._control.post("v1", "certificate", kind=kind)

    def renew(self) -> dict[str, Any]:
        """Show new connections a new valid certificate of the same authority."""
        return self.present("valid")

    def create(self, kind: ClientCertificateKind = "valid", *, user: str | None = None) -> str:
        """Return a new file with a client's key and certificate: "valid", "expired",
        "not_yet_valid" or "untrusted".

        ``user`` is the certificate's common name, by default that of `MiniBroker.client_config`.
        """
        made = self._control.post("v1", "certificate", "clients", kind=kind, user=user)
        return str(made["file"])


class BrokerTokens:
    """The token issuer of a broker with ``sasl="oauth"``."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def issuer(self) -> dict[str, Any]:
        """``issuer``, ``token_endpoint``, what it issues, how many it has issued, and its keys."""
        return self._control.get("v1", "oauth")

    def issue(self, kind: IssuedKind, lifetime_s: int | None = None) -> dict[str, Any]:
        """Change what clients get from the token endpoint.

        ``kind`` is one of `create`, or "denied" or "unavailable", with which they get an error.
        """
        return self._control.post("v1", "oauth", kind=kind, lifetime_s=lifetime_s)

    def create(
        self,
        kind: TokenKind = "valid",
        *,
        subject: str | None = None,
        lifetime_s: int | None = None,
        scope: str | None = None,
        claims: dict[str, Any] | None = None,
    ) -> str:
        """Return a token: "valid", "expired", "not_yet_valid", "wrong_audience", "wrong_issuer",
        "unknown_key" or "wrong_signature".

        ``claims`` override those of the kind.
        """
        made = self._control.post(
            "v1", "oauth", "tokens",
            kind=kind, subject=subject, lifetime_s=lifetime_s, scope=scope, claims=claims,
        )  # fmt: skip
        return str(made["access_token"])

    def rotate_keys(
        self, *, keep_old: bool = True, algorithm: Algorithm | None = None
    ) -> dict[str, Any]:
        """Sign with a new key; without ``keep_old``, tokens of older keys are invalid."""
        return self._control.post("v1", "oauth", "rotate", keep_old=keep_old, algorithm=algorithm)

"""Bootstrap servers of a cluster, and the security settings for connecting to them.

Owns both as one value. It must never read a file or import ``ssl``, because most connections use
neither TLS nor SASL. Invariant: code that has a `BootstrapServers` does not need to know whether
the connection is encrypted or authenticated.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, NamedTuple

from minibroker.broker.settings.types import BadValueError, HostPort, parse_host_port
from minibroker.client.errors import InvalidArgument

if TYPE_CHECKING:
    import ssl

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"


class ClientSecurity(NamedTuple):
    """TLS context and SASL mechanism; without either, the connection is PLAINTEXT.

    ``start_exchange`` starts the mechanism's exchange for a new authentication.
    """

    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    start_exchange: Callable[[], Generator[bytes, bytes, None]] | None = None


PLAINTEXT: Final = ClientSecurity()


class BootstrapServers(NamedTuple):
    """Addresses as ``host:port,host:port``, and how to connect to them."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    security: ClientSecurity = PLAINTEXT


def parse_bootstrap(text: str) -> list[HostPort]:
    """Parse ``host:port,host:port``. Raises `InvalidArgument`, which names the invalid address."""
    addresses = []
    for item in text.split(","):
        try:
            addresses.append(parse_host_port(item.strip()))
        except BadValueError as error:
            raise InvalidArgument(
                f"bootstrap server '{item}': {error}; write host:port, e.g. {DEFAULT_BOOTSTRAP}"
            ) from None
    return addresses

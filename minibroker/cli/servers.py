"""The servers of a command and how it authenticates there.

Owns both as one value. It must never read a file, nor import what TLS and SASL need: most commands
use neither. Invariant: code that has a `Servers` need not know whether it has to authenticate.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import ssl

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"


class Access(NamedTuple):
    """Open doors if empty; a ``mechanism`` comes with its proof, begun anew for each connection."""

    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    prove: Callable[[], Generator[bytes, bytes, None]] | None = None


OPEN: Final = Access()


class Servers(NamedTuple):
    """``host:port,host:port`` of a cluster, and what lets us in."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    access: Access = OPEN

"""Which servers a command asks, and how it is let in there.

Owns both as one value, and the two options that say so. It must never read the file itself, nor
import what TLS and SASL need: most commands are let in without. Invariant: whoever gets a
`Servers` need not know whether there is anything to prove.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

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


_BOOTSTRAP = click.option(
    "--bootstrap-server",
    "-b",
    "bootstrap",
    default=DEFAULT_BOOTSTRAP,
    metavar="HOST:PORT",
    envvar="MINIBROKER_BOOTSTRAP_SERVER",
    show_envvar=True,
    help="The broker to ask.",
)
_COMMAND_CONFIG = click.option(
    "--command-config",
    metavar="FILE",
    envvar="MINIBROKER_COMMAND_CONFIG",
    show_envvar=True,
    help="A client's properties, for a broker that wants TLS or to know who asks.",
)


def bootstrap_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--bootstrap-server`` and ``--command-config``, as ``servers``."""

    @functools.wraps(command)
    def with_servers(
        *arguments: Any, bootstrap: str, command_config: str | None, **others: Any
    ) -> Any:
        access = OPEN
        if command_config is not None:
            from minibroker.cli.client_file import read_access

            access = read_access(command_config)
        return command(*arguments, servers=Servers(bootstrap, access), **others)

    return _BOOTSTRAP(_COMMAND_CONFIG(with_servers))

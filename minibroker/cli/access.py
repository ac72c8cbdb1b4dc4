"""Options of every command that connects to a broker.

Owns ``--bootstrap-server`` and ``--command-config``. It must never import modules for TLS and SASL
unless a file is given. Invariant: a command receives both options as one `BootstrapServers`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from minibroker.client.connection import DEFAULT_BOOTSTRAP, PLAINTEXT, BootstrapServers

_BOOTSTRAP = click.option(
    "--bootstrap-server",
    "-b",
    "bootstrap",
    default=DEFAULT_BOOTSTRAP,
    metavar="HOST:PORT",
    envvar="MINIBROKER_BOOTSTRAP_SERVER",
    show_envvar=True,
    help="The broker to connect to.",
)
_COMMAND_CONFIG = click.option(
    "--command-config",
    metavar="FILE",
    envvar="MINIBROKER_COMMAND_CONFIG",
    show_envvar=True,
    help="A client properties file, for a broker that requires TLS or SASL.",
)


def bootstrap_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--bootstrap-server`` and ``--command-config``; the command receives ``servers``."""

    @functools.wraps(command)
    def with_servers(
        *arguments: Any, bootstrap: str, command_config: str | None, **others: Any
    ) -> Any:
        access = PLAINTEXT
        if command_config is not None:
            from minibroker.client.security import read_client_security

            access = read_client_security(command_config)
        return command(*arguments, servers=BootstrapServers(bootstrap, access), **others)

    return _BOOTSTRAP(_COMMAND_CONFIG(with_servers))

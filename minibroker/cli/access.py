"""The options of every command that connects to a broker.

Owns ``--bootstrap-server`` and ``--command-config``. It must never import what TLS and SASL need
unless a file is given. Invariant: a command gets them as one `BootstrapServers`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from minibroker.client.bootstrap import DEFAULT_BOOTSTRAP, PLAINTEXT, BootstrapServers

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
        access = PLAINTEXT
        if command_config is not None:
            from minibroker.client.config import read_client_security

            access = read_client_security(command_config)
        return command(*arguments, servers=BootstrapServers(bootstrap, access), **others)

    return _BOOTSTRAP(_COMMAND_CONFIG(with_servers))

"""``minibroker client-config``: what a client of a secured broker needs, in its library's names.

Owns the folder of certificates and passwords that `minibroker start --tls` and ``--sasl`` use. It
must never start a broker. Invariant: what it prints fits the last start with the same folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from minibroker.cli.commands import Command, examples
from minibroker.cli.output import InvalidUsage, emit
from minibroker.client.configs import CLIENTS, config_text
from minibroker.ready import DEFAULT_BOOTSTRAP
from minibroker.secured import InvalidSecurity, read_files

DIRECTORY: Final = Path(click.get_app_dir("minibroker")) / "security"

security_dir_option = click.option(
    "--security-dir",
    type=click.Path(path_type=Path),
    default=DIRECTORY,
    metavar="DIR",
    help="Folder of the certificates and passwords of --tls and --sasl, which later starts use "
    "again. [default: minibroker/security in the user's configuration]",
)

EXAMPLES = examples(
    "minibroker client-config",
    "minibroker client-config --for java > client.properties",
    "minibroker client-config --for kafkajs -b localhost:9094",
    "minibroker client-config --for franz-go > kafka.go",
)


@click.command("client-config", cls=Command, epilog=EXAMPLES)
@click.option(
    "--for",
    "library",
    default="librdkafka",
    metavar="LIBRARY",
    help=f"One of {', '.join(CLIENTS)}. [default: librdkafka]",
)
@click.option(
    "-b",
    "--bootstrap-server",
    "servers",
    default=DEFAULT_BOOTSTRAP,
    metavar="HOST:PORT",
    help=f"The broker. [default: {DEFAULT_BOOTSTRAP}]",
)
@security_dir_option
def client_config_command(library: str, servers: str, security_dir: Path) -> None:
    """Print the configuration of a client for a broker started with --tls or --sasl."""
    try:
        emit(config_text(read_files(security_dir.absolute()), library, servers))
    except InvalidSecurity as error:
        raise InvalidUsage(str(error)) from None

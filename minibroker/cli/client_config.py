"""``minibroker client-config``: what a client of a secured broker needs, in its library's names.

Owns the command. It must never start a broker. Invariant: what it prints fits the last start with
the same folder.
"""

from __future__ import annotations

from pathlib import Path

import click

from minibroker.cli.commands import Command, examples
from minibroker.cli.output import InvalidUsage, emit, json_line
from minibroker.cli.start import security_dir_option
from minibroker.client.configs import CLIENTS, LANGUAGES, config_json, config_text
from minibroker.ready import DEFAULT_BOOTSTRAP
from minibroker.secured import InvalidSecurity, read_files

EXAMPLES = examples(
    "minibroker client-config",
    "minibroker client-config --for java > client.properties",
    "minibroker client-config --for node -b localhost:9094",
    "minibroker client-config --for franz-go > kafka.go",
    "minibroker client-config --json | jq .config",
)


@click.command("client-config", cls=Command, epilog=EXAMPLES)
@click.option(
    "--for",
    "library",
    default="librdkafka",
    metavar="LIBRARY",
    help=f"One of {', '.join(CLIENTS)}, or a language: {', '.join(LANGUAGES)}. "
    "[default: librdkafka]",
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
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, with `config` or `code`."
)
def client_config_command(library: str, servers: str, security_dir: Path, as_json: bool) -> None:
    """Print the configuration of a client for a broker started with --tls or --sasl."""
    try:
        made = read_files(security_dir.absolute())
        if as_json:
            emit(json_line(config_json(made, library, servers)))
        else:
            emit(config_text(made, library, servers))
    except InvalidSecurity as error:
        raise InvalidUsage(str(error)) from None

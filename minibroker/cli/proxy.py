"""``minibroker proxy``: run a proxy in front of a Kafka cluster.

Owns the conversion of options, and the signals that stop it. It must never know the parts of a
proxy. Invariant: a proxy that cannot start says why, and how to fix it. Kafka has no equivalent.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minibroker.cli.commands import Command, examples
from minibroker.cli.output import CliError, InvalidUsage, Unreachable, emit
from minibroker.cli.start import create_files, security_dir_option

if TYPE_CHECKING:
    from minibroker.broker.settings.setting import HostPort
    from minibroker.secured import Secured

EXAMPLES = examples(
    "minibroker proxy --upstream kafka1:9092,kafka2:9092",
    "minibroker proxy --upstream 127.0.0.1:9092 --listener PLAINTEXT://127.0.0.1:0 --json",
    "minibroker proxy --upstream kafka:9093 --command-config client.properties",
    "minibroker proxy --upstream 127.0.0.1:9092 --tls",
    "minibroker proxy --upstream kafka:9092 --listener 0.0.0.0:9092 --control-port 8080",
    "minibroker faults add error api=Produce error=NOT_LEADER_OR_FOLLOWER first=2 \\",
    "    --control http://127.0.0.1:8080",
    after="""Connect clients to the proxy's address. Each broker gets a listener as soon as a
response names it, at the port after that of the last one. Stop it with Ctrl-C.""",
)


@click.command("proxy", cls=Command, epilog=EXAMPLES)
@click.option(
    "--upstream",
    required=True,
    metavar="HOST:PORT,...",
    help="Bootstrap servers of the cluster.",
)
@click.option(
    "--command-config",
    metavar="FILE",
    help="A client properties file with the TLS settings for a cluster that requires TLS.",
)
@click.option(
    "--listener",
    default="127.0.0.1:19092",
    metavar="[PLAINTEXT://]HOST:PORT",
    help="Address for clients, SSL://HOST:PORT with TLS; port 0 chooses free ports.",
)
@click.option(
    "--tls",
    is_flag=True,
    help="Use TLS for clients, with a certificate that is created for localhost. SASL passes.",
)
@click.option("--mutual-tls", is_flag=True, help="As --tls, and clients need a certificate.")
@security_dir_option
@click.option(
    "--control-port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="Port of the HTTP control API on 127.0.0.1; 0 chooses a free one.",
)
@click.option("--json", is_flag=True, help="Print one line of JSON when ready, and nothing else.")
def proxy(
    upstream: str,
    command_config: str | None,
    listener: str,
    tls: bool,
    mutual_tls: bool,
    security_dir: Path,
    control_port: int,
    json: bool,
) -> None:
    """Run a proxy in front of a Kafka cluster until it is stopped."""
    import trio

    from minibroker.broker.settings.setting import BadValueError
    from minibroker.client.connection import parse_bootstrap
    from minibroker.lab.control.proxy import (
        NoBrokerReachable,
        ProxyOptions,
        ProxyStartError,
        parse_listener,
        run_proxy,
    )
    from minibroker.ready import ProxyReady, as_json, proxy_as_text

    has_tls = tls or mutual_tls
    try:
        listening = parse_listener(listener, has_tls=has_tls)
    except BadValueError as error:
        raise InvalidUsage(f"--listener {listener}: {error}") from None
    upstream_tls = None
    if command_config is not None:
        from minibroker.client.security import read_tls

        upstream_tls = read_tls(command_config)
    secured = _secure(security_dir, "mutual" if mutual_tls else tls, listening) if has_tls else None
    servers = parse_bootstrap(upstream)
    options = ProxyOptions(servers, listening, control_port, upstream_tls, secured)

    def print_ready(ready: ProxyReady) -> None:
        emit(as_json(ready) if json else proxy_as_text(ready, upstream))

    async def run() -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            await run_proxy(options, signals.__anext__, print_ready)

    try:
        trio.run(run)
    except NoBrokerReachable as error:
        raise Unreachable(str(error)) from None
    except ProxyStartError as error:
        raise CliError(str(error)) from None


def _secure(folder: Path, tls: object, listener: HostPort) -> Secured:
    """Create certificates for clients, or use those of an earlier start. Raises `InvalidUsage`."""
    from minibroker.client.configs import keep_client_properties
    from minibroker.secured import hosts_of, secured_proxy

    made = secured_proxy(folder.absolute(), tls=tls)
    made = create_files(made, hosts_of([f"SSL://{listener}"]))
    keep_client_properties(made)
    return made

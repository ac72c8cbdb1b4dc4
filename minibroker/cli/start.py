"""``minibroker start``: start a broker with settings from options, the environment and a file.

Owns the conversion of options to settings. It must never know the parts of a broker. Invariant: an
option is equivalent to its setting and overrides it, so ``--listener`` overrides ``listeners`` in
the environment, which overrides the file. Kafka's ``kafka-server-start.sh`` has ``--override``.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from minibroker.cli.commands import Command, examples
from minibroker.cli.output import BadConfig, CliError, InvalidUsage, emit
from minibroker.ready import error_as_json

if TYPE_CHECKING:
    from minibroker.broker.settings import Settings
    from minibroker.secured import Secured

DIRECTORY: Final = Path(click.get_app_dir("minibroker")) / "security"

security_dir_option = click.option(
    "--security-dir",
    type=click.Path(path_type=Path),
    default=DIRECTORY,
    show_default=False,
    metavar="DIR",
    help="Folder of the certificates and passwords of --tls and --sasl, which later starts use "
    "again. [default: minibroker/security in the user's configuration]",
)

EXAMPLES = examples(
    "minibroker start",
    "minibroker start --listener PLAINTEXT://127.0.0.1:0 --json",
    "minibroker start --seed orders.toml",
    "minibroker start --data-dir ./data --config server.properties",
    "minibroker start --set num.partitions=3 --set log.retention.ms=60000",
    "minibroker start --tls --sasl scram-sha-512",
    "minibroker start --listener SSL://127.0.0.1:9093 --config tls.properties",
    after="""Without --data-dir the data is in memory-backed storage where the system has it,
and is removed at the end. Stop it with Ctrl-C.""",
)

JSON = "--json"


class StartCommand(Command):
    """A command that also prints its errors as JSON if its ready line is to be JSON."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with _errors_printed(JSON in args):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_printed(ctx.params["json"]):
            return super().invoke(ctx)


@contextmanager
def _errors_printed(as_json: bool) -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        if as_json:
            emit(error_as_json(error.format_message(), error.exit_code))
        raise
    except CliError as error:
        if as_json:
            emit(error_as_json(str(error), error.exit_code))
        raise


@click.command("start", cls=StartCommand, epilog=EXAMPLES)
@click.option(
    "--listener",
    "listeners",
    multiple=True,
    metavar="NAME://HOST:PORT",
    help="Address for clients; may be repeated; port 0 chooses a free port. "
    "[default: PLAINTEXT://127.0.0.1:9092]",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Data directory. [default: a temporary directory]",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A server.properties file.",
)
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="One setting; may be repeated; wins over the file. See `minibroker settings`.",
)
@click.option(
    "--profile",
    default="laptop",
    metavar="PROFILE",
    help="Profile of defaults: laptop (few processes) or kafka.",
)
@click.option(
    "--control",
    metavar="HOST:PORT",
    help="Address of the HTTP control API. [default: a free port of 127.0.0.1]",
)
@click.option(
    "--tls",
    is_flag=True,
    help="Use TLS for clients, with a certificate that is created for localhost.",
)
@click.option("--mutual-tls", is_flag=True, help="As --tls, and clients need a certificate.")
@click.option(
    "--sasl",
    metavar="MECHANISM",
    help="Authenticate clients: plain, scram-sha-256, scram-sha-512 or oauth; a user is created, "
    "for oauth with an issuer of tokens at the control API.",
)
@security_dir_option
@click.option(
    JSON,
    is_flag=True,
    help="Print one line of JSON when ready, or why the broker cannot start, and nothing else.",
)
@click.option(
    "--exit-with-parent",
    is_flag=True,
    help="Stop when the parent process has ended, even if killed, or when standard input ends, "
    "if it is a pipe.",
)
@click.option(
    "--seed",
    type=click.Path(path_type=Path),
    envvar="MINIBROKER_SEED",
    metavar="PATH",
    help="A TOML file or a folder with topics, records, settings, users and quotas to create.",
)
@click.option(
    "--recover-topics-from-logs",
    is_flag=True,
    help="Recover topics that the config store has lost from the partitions in --data-dir.",
)
def start(
    listeners: Sequence[str],
    data_dir: Path | None,
    config: Path | None,
    pairs: Sequence[str],
    profile: str,
    control: str | None,
    tls: bool,
    mutual_tls: bool,
    sasl: str | None,
    security_dir: Path,
    json: bool,
    exit_with_parent: bool,
    seed: Path | None,
    recover_topics_from_logs: bool,
) -> None:
    """Start a broker and run it until it is stopped."""
    parent_pid = os.getppid() if exit_with_parent else None
    hide_secrets(pairs)
    made = None
    if tls or mutual_tls or sasl is not None:
        made = secure(security_dir, "mutual" if mutual_tls else tls, sasl, listeners)
        listeners = listeners or [f"{made.protocol}://127.0.0.1:9092"]
        pairs = [*(f"{name}={value}" for name, value in made.settings().items()), *pairs]
    seeded = None if seed is None else _read_seed(seed)
    settings = read_settings(
        listeners=listeners,
        data_dir=data_dir,
        config=config,
        pairs=pairs,
        profile=profile,
        control=control,
        seeded={} if seeded is None else seeded.pop("settings"),
    )
    made = _name_hosts(made, settings)
    if recover_topics_from_logs and settings.data_dir is None:
        raise InvalidUsage("--recover-topics-from-logs: requires --data-dir")
    # Imported modules live as long as the process; garbage collection need not scan them.
    gc.disable()
    from minibroker import launch

    gc.freeze()
    gc.enable()

    status = launch.start(
        settings,
        json_ready=json,
        rebuild_topics=recover_topics_from_logs,
        seed=seeded,
        parent_pid=parent_pid,
        client_properties="" if made is None else made.properties,
        on_control=partial(_keep_for_clients, made),
        on_failed_start=partial(_print_failure, json),
    )
    raise click.exceptions.Exit(status)


def _print_failure(as_json: bool, message: str) -> None:
    if as_json:
        from minibroker.runtime.supervisor import Exit

        emit(error_as_json(message, Exit.FAILED))


def secure(folder: Path, tls: object, sasl: str | None, listeners: Sequence[str]) -> Secured:
    """Create certificates and a user, or use those of an earlier start.

    Raises `InvalidUsage`, also if a listener has another security protocol.
    """
    from minibroker.secured import InvalidSecurity, hosts_of, secured

    try:
        made = secured(folder.absolute(), tls=tls, sasl=sasl)
        for listener in listeners:
            if not listener.upper().startswith(f"{made.protocol}://"):
                raise InvalidSecurity(
                    f"--listener {listener}: with these options it must be {made.protocol}://…"
                )
    except InvalidSecurity as error:
        raise InvalidUsage(str(error)) from None
    return create_files(made, hosts_of(listeners))


def _name_hosts(made: Secured | None, settings: Settings) -> Secured | None:
    """Let the certificate name all hosts: listeners may be in a file or the environment, too."""
    if made is None:
        return None
    from minibroker.broker.settings import ADVERTISED_LISTENERS
    from minibroker.secured import hosts_of

    listeners = [*settings.client_listeners, *(settings[ADVERTISED_LISTENERS] or ())]
    return create_files(made, hosts_of(map(str, listeners)))


def _keep_for_clients(made: Secured | None, control_url: str) -> None:
    """Write the configuration of clients, which may need the URL of the token issuer."""
    if made is not None:
        from minibroker.client.configs import keep_client_properties
        from minibroker.token_issuer import issuer_url

        keep_client_properties(made._replace(issuer=issuer_url(control_url)))


def create_files(made: Secured, hosts: Iterable[str]) -> Secured:
    """Create the certificates and passwords that are missing. Raises `InvalidUsage`."""
    from minibroker.secured import InvalidSecurity, write_files

    try:
        return write_files(made, hosts)
    except InvalidSecurity as error:
        raise InvalidUsage(str(error)) from None
    except OSError as error:
        text = f"--security-dir {made.folder}: {error.strerror}; choose another folder"
        raise InvalidUsage(text) from None


def _read_seed(path: Path) -> dict[str, Any]:
    from minibroker.seed_file import SeedError, read_seed

    try:
        return read_seed(path)
    except SeedError as error:
        raise InvalidUsage(f"--seed: {error}") from None


def hide_secrets(pairs: Sequence[str]) -> None:
    """Mask the values of sensitive settings in the process list."""
    from minibroker.broker.settings.setting import broker_setting

    secrets = []
    for pair in pairs:
        name, _, value = pair.partition("=")
        declared = broker_setting(name.strip())
        if declared is not None and declared.sensitive and not value.strip().startswith("${"):
            secrets.append(pair)
    if secrets:
        from minibroker.runtime.system import mask_arguments

        mask_arguments(secrets)


def read_settings(
    *,
    listeners: Sequence[str],
    data_dir: Path | None,
    config: Path | None,
    pairs: Sequence[str],
    profile: str,
    control: str | None,
    seeded: Mapping[str, str] = {},
) -> Settings:
    """Read settings from all sources. Raises `BadConfig`, which lists all problems."""
    from minibroker.broker.settings import (
        ConfigError,
        SettingEntry,
        Settings,
        read_pairs,
        read_properties,
    )
    from minibroker.broker.settings.settings import read_environment

    if config is not None and not config.exists():
        raise InvalidUsage(f"--config {config}: there is no such file")
    entries = [SettingEntry(name, value, "--seed") for name, value in seeded.items()]
    try:
        if config is not None:
            entries += read_properties(config)
        options = {option for each in start.params for option in each.opts}
        named, ignored = read_environment(os.environ, options)
        entries += named
        entries += read_pairs(pairs)
        if listeners:
            entries.append(SettingEntry("listeners", ",".join(listeners), "--listener"))
        if data_dir is not None:
            entries.append(SettingEntry("log.dirs", str(data_dir), "--data-dir"))
        if control is not None:
            entries.append(SettingEntry("control.listener", control, "--control"))
        return Settings.from_entries(entries, profile, ignored=ignored)
    except ConfigError as error:
        raise BadConfig("\n  ".join(["invalid settings:", *error.problems])) from None

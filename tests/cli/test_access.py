from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from minibroker.cli.access import bootstrap_option
from minibroker.client.connection import PLAINTEXT, BootstrapServers
from minibroker.client.errors import InvalidClientConfig


def servers_of(*words: str, env: dict[str, str] | None = None) -> BootstrapServers:
    """Run a command with these arguments and return its servers."""
    given: list[BootstrapServers] = []

    @click.command()
    @bootstrap_option
    def command(servers: BootstrapServers) -> None:
        given.append(servers)

    result = CliRunner().invoke(command, words, env=env)
    if isinstance(result.exception, InvalidClientConfig):
        raise result.exception
    return given[0]


def test_bootstrap_option_defaults_to_local_broker() -> None:
    assert servers_of() == BootstrapServers("127.0.0.1:9092", PLAINTEXT)


@pytest.fixture
def file(tmp_path: Path) -> str:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\n")
    return str(file)


def test_bootstrap_option_reads_options_and_environment(file: str) -> None:
    by_option = servers_of("-b", "x:1", "--command-config", file)
    names = {"MINIBROKER_BOOTSTRAP_SERVER": "y:2", "MINIBROKER_COMMAND_CONFIG": file}
    by_environment = servers_of(env=names)
    assert (by_option.bootstrap, by_environment.bootstrap) == ("x:1", "y:2")
    assert by_option.security.tls is not None
    assert by_environment.security.tls is not None


def test_missing_command_config_is_rejected() -> None:
    with pytest.raises(InvalidClientConfig, match="/no/such: cannot be read"):
        servers_of("--command-config", "/no/such")

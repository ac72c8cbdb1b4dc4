from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from minibroker.cli.access import bootstrap_option
from minibroker.client.bootstrap import PLAINTEXT, BootstrapServers
from minibroker.client.errors import InvalidClientConfig


def servers_of(*words: str, env: dict[str, str] | None = None) -> BootstrapServers:
    """What a command with these words is given."""
    given: list[BootstrapServers] = []

    @click.command()
    @bootstrap_option
    def command(servers: BootstrapServers) -> None:
        given.append(servers)

    result = CliRunner().invoke(command, words, env=env)
    if isinstance(result.exception, InvalidClientConfig):
        raise result.exception
    return given[0]


def test_without_a_word_it_is_the_broker_of_this_machine_as_it_is() -> None:
    assert servers_of() == BootstrapServers("127.0.0.1:9092", PLAINTEXT)


@pytest.fixture
def file(tmp_path: Path) -> str:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\n")
    return str(file)


def test_both_may_be_said_by_option_or_by_environment(file: str) -> None:
    by_option = servers_of("-b", "x:1", "--command-config", file)
    names = {"MINIBROKER_BOOTSTRAP_SERVER": "y:2", "MINIBROKER_COMMAND_CONFIG": file}
    by_environment = servers_of(env=names)
    assert (by_option.bootstrap, by_environment.bootstrap) == ("x:1", "y:2")
    assert by_option.security.tls is not None
    assert by_environment.security.tls is not None


def test_a_file_that_will_not_do_is_told() -> None:
    with pytest.raises(InvalidClientConfig, match="/no/such: cannot be read"):
        servers_of("--command-config", "/no/such")

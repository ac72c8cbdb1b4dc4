"""SCRAM credentials in ``minibroker configs``: output and errors of kafka-configs.sh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from minibroker.cli.app import app
from minibroker.cli.output import CliError
from minibroker.testing import MiniBroker

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
}
USER = ("--entity-type", "users", "--entity-name", "alice")


@pytest.fixture
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings=SETTINGS) as made:
        yield made


@pytest.fixture
def configs(broker: MiniBroker) -> Any:
    def run(*words: str) -> list[str] | str:
        plaintext = broker.bootstrap_servers.split(",")[0]
        result = CliRunner().invoke(app, ["configs", "-b", plaintext, *words])
        if isinstance(result.exception, CliError):
            assert result.exception.exit_code == 1
            return str(result.exception)
        return result.stdout.splitlines()

    return run


def test_scram_credential_is_set_described_and_deleted(configs: Any, broker: MiniBroker) -> None:
    done = ["Completed updating config for user alice."]
    add = "SCRAM-SHA-512=[iterations=8192,password=a=b,c]"
    assert configs(*USER, "--alter", "--add-config", add) == done
    shown = "SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-512=iterations=8192"
    assert configs(*USER, "--describe") == [shown]
    assert configs("--entity-type", "users", "--describe") == [shown]
    config = {
        "bootstrap.servers": broker.bootstrap_servers.split(",")[1],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "a=b,c",
    }
    assert AdminClient(config).list_topics(timeout=60).brokers
    assert configs("--user", "alice", "--alter", "--add-config", "producer_byte_rate=9") == done
    assert configs(*USER, "--alter", "--delete-config", "SCRAM-SHA-512") == done
    assert configs(*USER, "--describe") == [
        "Quota configs for user-principal 'alice' are producer_byte_rate=9.0"
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((*USER, "--add-config", "SCRAM-SHA-256=[hunter2]"), "Invalid credential property"),
        ((*USER, "--add-config", "SCRAM-SHA-256=[iterations=9,password=hunter2]"), "less than"),
        (
            (*USER, "--add-config", "SCRAM-SHA-256=[password=hunter2],request_percentage=1"),
            "Cannot alter both quota and SCRAM",
        ),
        (("--user-defaults", "--add-config", "SCRAM-SHA-256=[password=x]"), "is not allowed with"),
        ((*USER, "--delete-config", "SCRAM-SHA-256"), "does not exist"),
    ],
)
def test_credential_errors_do_not_contain_the_password(
    configs: Any, words: tuple[str, ...], text: str
) -> None:
    output = configs(*words, "--alter")
    assert text in output
    assert "hunter2" not in output

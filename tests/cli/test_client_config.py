"""``minibroker client-config`` prints what clients of a secured broker need."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minibroker.cli.client_config import client_config_command
from minibroker.cli.output import InvalidUsage
from minibroker.secured import secured, write_files


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    client_config_command.main([*words], standalone_mode=False)
    return capsys.readouterr().out


def test_configuration_of_the_last_start_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = secured(tmp_path / "security", sasl="plain")
    write_files(made)
    folder = ("--security-dir", str(made.folder))
    assert printed(capsys, *folder, "-b", "there:1").splitlines() == [
        "bootstrap.servers=there:1",
        "security.protocol=sasl_plaintext",
        "sasl.mechanism=PLAIN",
        "sasl.username=test",
        f"sasl.password={made.password}",
    ]
    assert '"sasl_mechanism": "PLAIN"' in printed(capsys, *folder, "--for", "aiokafka")
    found = json.loads(printed(capsys, *folder, "--for", "node", "-b", "there:1", "--json"))
    assert (found["library"], found["config"]["brokers"]) == ("kafkajs", ["there:1"])


def test_folder_of_no_broker_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsage, match="no broker was started with --tls or --sasl") as caught:
        client_config_command.main(["--security-dir", str(tmp_path)], standalone_mode=False)
    assert str(caught.value).endswith("start one: minibroker start --tls")

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.cli.output import InvalidUsage, Unreachable
from minibroker.client.errors import InvalidArgument, InvalidClientConfig
from minibroker.testing import MiniBroker


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["proxy", *words])


def test_invalid_addresses_are_named() -> None:
    result = run("--upstream", "kafka:9092", "--listener", "nowhere")
    assert isinstance(result.exception, InvalidUsage)
    assert "--listener nowhere: must be host:port" in str(result.exception)
    result = run("--upstream", "kafka:9092", "--listener", "SSL://127.0.0.1:0")
    assert isinstance(result.exception, InvalidUsage)
    assert "may start with PLAINTEXT://" in str(result.exception)
    result = run("--upstream", "kafka")
    assert isinstance(result.exception, InvalidArgument)
    assert run().exit_code == 2


def test_listener_with_tls_is_ssl(tmp_path: Path) -> None:
    words = ("--upstream", "127.0.0.1:1", "--security-dir", str(tmp_path), "--tls")
    result = run(*words, "--listener", "PLAINTEXT://127.0.0.1:0")
    assert isinstance(result.exception, InvalidUsage)
    assert isinstance(run(*words, "--listener", "SSL://127.0.0.1:0").exception, Unreachable)
    assert "security.protocol=SSL" in (tmp_path / "client.properties").read_text()


def test_invalid_properties_are_reported(tmp_path: Path) -> None:
    result = run("--upstream", "kafka:9093", "--command-config", str(tmp_path / "none"))
    assert isinstance(result.exception, InvalidClientConfig)
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=TLS")
    result = run("--upstream", "kafka:9093", "--command-config", str(file))
    assert isinstance(result.exception, InvalidClientConfig)


def test_unreachable_cluster_is_reported() -> None:
    with socket.socket() as lost:
        lost.bind(("127.0.0.1", 0))
        port = lost.getsockname()[1]
        result = run("--upstream", f"127.0.0.1:{port}", "--listener", "127.0.0.1:0")
    assert isinstance(result.exception, Unreachable)
    assert "Connection refused" in str(result.exception)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("form", "listener"), [("json", "127.0.0.1:0"), ("text", "PLAINTEXT://127.0.0.1:0")]
)
def test_proxy_serves_until_it_is_stopped(
    minibroker: MiniBroker, stop: int, form: str, listener: str
) -> None:
    options = ["--upstream", minibroker.bootstrap_servers, "--listener", listener]
    command = [sys.executable, "-m", "minibroker", "proxy", *options]
    with subprocess.Popen(
        [*command, "--json"] if form == "json" else command, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if form == "json":
            ready = json.loads(line)
            listed = CliRunner().invoke(app, ["faults", "list", "--control", ready["control_url"]])
            assert "no fault rules" in listed.stderr
            assert ready["event"] == "ready"
        else:
            assert "is a proxy" in line
        process.send_signal(stop)
        assert process.wait(30) == 0

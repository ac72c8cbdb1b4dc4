"""Commands of minibroker with a broker that requires TLS or SASL."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from system_tests.harness.waiting import PATIENCE_S
from system_tests.security.conftest import MODULES, PASSWORDS, Secured

pytestmark = pytest.mark.minibroker

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(secured: Secured) -> Command:
    def run(server: str, *words: str, says: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "minibroker", *words, "--bootstrap-server", server],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            input=says,
        )

    return run


@pytest.mark.parametrize("mechanism", MODULES)
def test_authenticated_record_round_trip_succeeds(
    secured: Secured, command: Command, tmp_path: Path, mechanism: str
) -> None:
    file = secured.client(tmp_path, mechanism, "alice", PASSWORDS["alice"])
    if mechanism.startswith("SCRAM"):
        add = f"{mechanism}=[password={PASSWORDS['alice']}]"
        made = command(
            secured.plaintext, "configs", "--alter", "--user", "alice", "--add-config", add
        )
        assert made.returncode == 0, made.stderr
    topic, proof = f"ours-{uuid.uuid4().hex[:6]}", ("--command-config", file)
    for words in (("topics", "create", topic), ("produce", topic, "hello")):
        done = command(secured.sasl_ssl, *words, *proof)
        assert done.returncode == 0, done.stderr
    read = ("consume", topic, "--from-beginning", "--max-messages", "1", "--format", "json")
    printed = command(secured.sasl_ssl, *read, *proof).stdout
    assert json.loads(printed)["value"] == "hello"


def test_wrong_password_reports_sasl_authentication_failed(
    secured: Secured, command: Command, tmp_path: Path
) -> None:
    file = secured.client(tmp_path, "PLAIN", "alice", "guessed")
    done = command(secured.sasl_ssl, "topics", "list", "--command-config", file)
    assert done.returncode == 1
    assert "SASL_AUTHENTICATION_FAILED: Authentication failed: Invalid username" in done.stderr
    assert "guessed" not in done.stdout + done.stderr


def test_certificate_is_a_name(secured: Secured, command: Command, tmp_path: Path) -> None:
    carol = f"ssl.keystore.location={secured.folder}/carol.pem"
    file = secured.proven(tmp_path, "security.protocol=SSL", carol)
    quotas = ("configs", "--describe", "--user", "alice", "--command-config", file)
    assert command(secured.ssl, *quotas).returncode == 0


@pytest.mark.parametrize(
    ("listener", "lines", "why"),
    [
        ("sasl_ssl", "", "it may be a TLS listener; pass the client's security settings"),
        ("sasl_ssl", "security.protocol=SSL\n", "its certificate is not trusted"),
        ("plaintext", "security.protocol=SSL\n", "is that of a TLS listener"),
    ],
)
def test_wrong_security_config_reports_fix(
    secured: Secured, command: Command, tmp_path: Path, *, listener: str, lines: str, why: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(lines)
    done = command(getattr(secured, listener), "topics", "list", "--command-config", str(file))
    assert done.returncode == 3
    assert why in done.stderr
    assert "Traceback" not in done.stderr

"""franz-go's own tests of its package kgo, from the Go module proxy.

Owns the broker that the tests need and the environment variables with its address. What the
tests are expected to do is in `expected/kgo.txt`. Invariant: the module and its checksum are
pinned by `kgo/go.mod` and `go.sum`, so every run has the same tests.
"""

from __future__ import annotations

import os
import subprocess
import sys

from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.compiling import fetch_go_modules
from system_tests.harness.jars import CACHE, PROJECT
from system_tests.suites.expectations import Result
from system_tests.suites.outcomes import from_go

NAME = "kgo"
FOLDER = PROJECT / "system_tests" / "suites" / "kgo"
PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
_SHORT_TESTS = (
    "TestTxnEtl|TestGroupETL|TestSCRAM.*|TestPing|TestClient_.*|TestConsume.*|TestPause.*"
    "|TestShare.*"
)
SHORT = (f"-run=^({_SHORT_TESTS})$", "-skip=^(TestTxnEtl|TestGroupETL)$/848")
"""The tests that CI runs: transactions, groups, share groups and records, in half a minute."""
RECORDS = {True: 2_000, False: 50_000}
"""Records of the two long tests in a short and in a complete run."""
LIMIT_S = {True: 300, False: 1_500}
SCRAM_USER = ("scram-user", "scram-password")


def run(*, short: bool) -> dict[str, Result]:
    """Run the tests against one broker and return how each ended."""
    fetch_go_modules(FOLDER)
    broker = start_minibroker(
        "--listener",
        "SASL_PLAINTEXT://127.0.0.1:0",
        settings={
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "group.initial.rebalance.delay.ms": "0",
        },
    )
    try:
        return from_go(_events(broker, short=short))
    finally:
        broker.stop()
        (CACHE / "kgo-broker.log").write_text(broker.printed())
        broker.forget()


def _events(broker: RunningBroker, *, short: bool) -> list[str]:
    plaintext, scram = broker.bootstrap_servers.split(",")
    _create_scram_user(plaintext)
    command = ["go", "test", "-json", "-count=1", f"-timeout={LIMIT_S[short]}s"]
    if short:
        command += SHORT
    done = subprocess.run(
        [*command, PACKAGE],
        check=False,
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S[short],
        env={
            **os.environ,
            "KGO_SEEDS": plaintext,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": str(RECORDS[short]),
            "KGO_TEST_UNSAFE": "1",
            "KGO_TEST_SCRAM": ":".join(SCRAM_USER),
            "KGO_TEST_SCRAM_SEEDS": scram,
            "KGO_LOG_LEVEL": "none",
        },
    )
    (CACHE / "kgo-output.json").write_text(done.stdout + done.stderr)
    return done.stdout.splitlines()


def _create_scram_user(servers: str) -> None:
    user, password = SCRAM_USER
    subprocess.run(
        [
            *[sys.executable, "-m", "minibroker", "configs", "--bootstrap-server", servers],
            *["--alter", "--entity-type", "users", "--entity-name", user],
            *["--add-config", f"SCRAM-SHA-256=[password={password}]"],
        ],
        check=True,
        capture_output=True,
    )

"""Jobs with a broker that requires TLS, authentication and authorization."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from minibroker.lab.activity.events import TOPIC
from system_tests.harness.waiting import SPARK_PATIENCE_S, wait_until
from system_tests.pipeline.job_launchers import Launcher, by_minibroker, by_spark, run_to_completion
from system_tests.pipeline.watch_process import ALERTS, CLIENT, Watch, alerts, produce, set_quota
from system_tests.security.conftest import MODULES, PASSWORDS, Secured, securing

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

USER = "bob"
"""A user without rights beyond its ACLs."""
MAY = ((TOPIC, AclOperation.READ), (ALERTS, AclOperation.WRITE))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A secured broker with activity recording, which has throttled a client."""
    folder = tmp_path_factory.mktemp("secured")
    with securing(folder, {"activity.enable": "true"}) as at:
        set_quota(at.plaintext)
        admin = AdminClient({"bootstrap.servers": at.plaintext, "log_level": 0})
        admin.create_topics([NewTopic(ALERTS, 1)])[ALERTS].result()
        rules = [
            AclBinding(
                ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{USER}", "*",
                operation, AclPermissionType.ALLOW,
            )
            for topic, operation in MAY
        ]  # fmt: skip
        for done in admin.create_acls(rules).values():
            done.result()
        scram = f"SCRAM-SHA-512=[password={PASSWORDS[USER]}]"
        command = [sys.executable, "-m", "minibroker", "configs", "-b", at.plaintext, "--alter"]
        subprocess.run([*command, "--user", USER, "--add-config", scram], check=True)
        produce({"bootstrap.servers": at.plaintext})
        yield at


def let_in(at: Secured, folder: Path, proof: str, password: str = PASSWORDS[USER]) -> str:
    """A client's properties for a mechanism, or for a certificate, if it is none."""
    if proof in MODULES:
        return at.client(folder, proof, USER, password)
    return at.proven(
        folder, "security.protocol=SSL", f"ssl.keystore.location={at.folder}/carol.pem"
    )


def ingest(
    server: str, table: Path, file: str, by: Launcher = by_minibroker
) -> subprocess.CompletedProcess[str]:
    words = ("--from", server, "--into", str(table), "--command-config", file)
    return run_to_completion(by("ingest", *words))


def no_secret_is_in(folder: Path, *texts: str) -> None:
    kept = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    for secret in PASSWORDS.values():
        assert not any(secret in text for text in texts)
        assert not any(secret.encode() in each for each in kept)


@pytest.mark.parametrize(
    ("proof", "by"),
    [
        ("SCRAM-SHA-512", by_minibroker),
        ("certificate", by_minibroker),
        ("SCRAM-SHA-512", by_spark),
    ],
)
def test_secured_broker_is_ingested(
    secured: Secured, tmp_path: Path, proof: str, by: Launcher
) -> None:
    server = secured.sasl_ssl if proof in MODULES else secured.ssl
    table = tmp_path / "activity"
    done = ingest(server, table, let_in(secured, tmp_path, proof), by)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    query = f"select count(*) from '{table}/*/*/*.parquet' where client_id = '{CLIENT}'"
    ((count,),) = duckdb.execute(query).fetchall()
    assert count >= 16
    no_secret_is_in(table, done.stdout, done.stderr)


def test_wrong_password_reports_config_line(secured: Secured, tmp_path: Path) -> None:
    file = let_in(secured, tmp_path, "PLAIN", "guessed")
    done = ingest(secured.sasl_ssl, tmp_path / "activity", file)
    assert done.returncode == 1
    failed = "Authentication failed: Invalid username or password"
    said = f"{file}:3: request to {secured.sasl_ssl} failed ({failed}): check sasl.jaas.config"
    assert said in done.stderr
    assert "guessed" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_alerts_come_from_a_secured_broker_and_go_there(secured: Secured, tmp_path: Path) -> None:
    file, place = let_in(secured, tmp_path, "PLAIN"), tmp_path / "state"
    words = ("--command-config", file, "--checkpoint", str(place))
    watch = Watch(tmp_path, secured.sasl_ssl, *words)
    try:
        held = f"raised   client {CLIENT} on broker 1: throttled for 2 s"
        wait_until(
            lambda: held in watch.printed(),
            "the throttle to be reported",
            within_s=SPARK_PATIENCE_S,
        )
        no_secret_is_in(place, watch.printed(), watch.complaints())
    finally:
        watch.kill()
    found = alerts({"bootstrap.servers": secured.plaintext})
    assert ("throttled", "raised") in {(each["rule"], each["state"]) for each in found}

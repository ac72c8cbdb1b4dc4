"""The jobs on a cluster: ``spark-submit`` from a folder where the workers are not.

Two of Spark's own processes stand for the cluster, which is started as its manual says. They run
in another folder than the user, so a path that is relative to the user's folder would fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark
import pytest

from minibroker.lab.activity.events import TOPIC
from minibroker.pipeline import __main__ as jobs
from system_tests.harness.brokers import free_port, start_minibroker
from system_tests.harness.waiting import PATIENCE_S, SPARK_PATIENCE_S, wait_until

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

SPARK: Final = Path(pyspark.__file__).parent
SLOW: Final = "--alter --entity-type clients --entity-name minibroker-cli --add-config "
BYTES: Final = 400_000
JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS: Final = (
    f"spark.executor.extraJavaOptions={JAVA}",
    "spark.executor.memory=800m",
    "spark.sql.shuffle.partitions=2",
    "spark.ui.enabled=false",
)


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "worker"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": JAVA,
    }


@contextmanager
def daemon(folder: Path, log: Path, name: str, *options: str) -> Iterator[None]:
    """One of Spark's own processes, working in a folder of its own."""
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(folder), stdout=output, stderr=output
        )
        try:
            yield
        finally:
            process.kill()
            process.wait(PATIENCE_S)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    folder, address = tmp_path / "elsewhere", f"127.0.0.1:{free_port()}"
    folder.mkdir()
    host, port = address.split(":")
    logs = tmp_path / "master.log", tmp_path / "worker.log"
    ui = ("--webui-port", "0")
    with ExitStack() as stack:
        where = ("--host", host, "--port", port)
        stack.enter_context(daemon(folder, logs[0], "master.Master", *where, *ui))
        wait_until(
            lambda: "New state: ALIVE" in logs[0].read_text(), "a master", within_s=PATIENCE_S
        )
        size = ("-c", "1", "-m", "1g")
        url = f"spark://{address}"
        stack.enter_context(daemon(folder, logs[1], "worker.Worker", *size, *ui, url))
        wait_until(
            lambda: "Registering worker" in logs[0].read_text(), "a worker", within_s=PATIENCE_S
        )
        yield url


def submit(cluster: str, folder: Path, *job: str) -> str:
    """Return the output of a job that is submitted from ``folder``."""
    program = str(SPARK / "bin" / "spark-submit")
    command = [program, "--master", cluster, "--driver-java-options", JAVA]
    for setting in SETTINGS:
        command += ["--conf", setting]
    done = subprocess.run(
        [*command, jobs.__file__, *job],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=SPARK_PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return done.stdout


def recorded(folder: Path) -> None:
    """A stopped broker's data, in which a client has sent somewhat less than half a megabyte."""
    broker = start_minibroker(data_dir=folder / "data", settings={"activity.enable": "true"})
    try:
        command = [sys.executable, "-m", "minibroker", "produce", "orders"]
        subprocess.run(
            [*command, "-b", broker.bootstrap_servers],
            input=b"\n".join([b"x" * (BYTES // 20)] * 20),
            timeout=PATIENCE_S,
            check=True,
        )
        assert broker.stop() == 0
    finally:
        broker.forget()
    assert (folder / "data" / f"{TOPIC}-0").is_dir()


def test_jobs_are_submitted_with_paths_of_where_one_is(cluster: str, tmp_path: Path) -> None:
    recorded(tmp_path)
    assert "events ingested into activity" in submit(
        cluster, tmp_path, "ingest", "--from", "data", "--into", "activity"
    )
    (tmp_path / "slow.txt").write_text(f"{SLOW}producer_byte_rate=1000\n")
    output = submit(
        cluster, tmp_path, "whatif", "--table", "activity", "--quotas", "slow.txt", "--from-start"
    )
    assert "minibroker-cli" in output

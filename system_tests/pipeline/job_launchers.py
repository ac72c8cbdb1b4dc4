"""The two ways to start a job on this machine: minibroker's, and Spark's own.

Owns the command lines and the environment; the jobs belong to the tests. Invariant: both have the
same settings, on one core, and the connector's jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pyspark

from minibroker.pipeline import __main__ as jobs
from system_tests.conftest import without_toolchain
from system_tests.harness.jars import ToolchainMissing, connector_jars
from system_tests.harness.waiting import SPARK_PATIENCE_S

MASTER: Final = ("--master", "local[1]")
FEW_PARTITIONS: Final = ("--conf", "spark.sql.shuffle.partitions=1")


class LaunchCommand(NamedTuple):
    """Arguments and environment for `subprocess`."""

    args: list[str]
    env: Mapping[str, str]


Launcher = Callable[..., LaunchCommand]


def by_minibroker(*job: str) -> LaunchCommand:
    command = [sys.executable, "-m", "minibroker", "pipeline", *job, *MASTER, *FEW_PARTITIONS]
    return LaunchCommand([*command, "--conf", f"spark.jars={jars()}"], os.environ)


def by_spark(*job: str) -> LaunchCommand:
    """With ``spark-submit``."""
    spark = Path(pyspark.__file__).parent
    command = [
        str(spark / "bin" / "spark-submit"),
        *MASTER,
        *FEW_PARTITIONS,
        "--jars",
        jars(),
        jobs.__file__,
    ]
    environment = {
        "SPARK_HOME": str(spark),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    return LaunchCommand([*command, *job], {**os.environ, **environment})


def run_to_completion(start: LaunchCommand) -> subprocess.CompletedProcess[str]:
    """Run a job until it ends by itself; return its result."""
    return subprocess.run(
        start.args,
        env=start.env,
        capture_output=True,
        text=True,
        timeout=SPARK_PATIENCE_S,
        check=False,
    )


def jars() -> str:
    """The jars of Spark's Kafka connector; without a toolchain the test is skipped."""
    try:
        return ",".join(map(str, connector_jars().glob("*.jar")))
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise

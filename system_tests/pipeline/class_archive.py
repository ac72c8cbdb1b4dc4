"""An archive of Spark's classes, with which a job's JVM starts in half the time.

Owns the archive, which one short job makes and which is kept in the cache, and the environment
variables that name it. Invariant: a JVM that the archive does not fit starts without it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark

from system_tests.harness.jars import CACHE, one_at_a_time, run

FAST_START: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SILENT: Final = "-Xlog:disable"
"""Without warnings on standard output, such as that classes of old versions are not archived."""


def environment() -> dict[str, str]:
    """Return the variables with which Spark's scripts start JVMs that use the archive."""
    return {
        "SPARK_SUBMIT_OPTS": f"-XX:SharedArchiveFile={spark_classes()} {SILENT}",
        "SPARK_LAUNCHER_OPTS": FAST_START,
    }


def spark_classes() -> Path:
    """Return the archive, made if need be."""
    java = os.path.realpath(shutil.which("java") or "")
    inputs = f"{os.path.realpath(pyspark.__file__)} {pyspark.__version__} {java}"
    digest = hashlib.sha256(inputs.encode() + Path(__file__).read_bytes()).hexdigest()[:12]
    archive = CACHE / f"spark-classes-{digest}.jsa"
    with one_at_a_time("spark-classes"):
        if not archive.exists():
            fresh = archive.with_suffix(".part")
            options = f"-XX:ArchiveClassesAtExit={fresh} {SILENT}"
            run(
                ["env", f"SPARK_SUBMIT_OPTS={options}", sys.executable, "-m", __name__],
                "the archive of Spark's classes was not made",
            )
            fresh.rename(archive)
    return archive


def use_spark(table: str) -> None:
    """Do what most jobs do, and wait for the end of the JVM, which writes the archive then."""
    from minibroker.pipeline.session import session

    conf = {"spark.sql.shuffle.partitions": "1"}
    with session("training", master="local[1]", conf=conf) as spark:
        gateway = spark.sparkContext._gateway
        rows = spark.range(100).selectExpr("id", "id % 3 as part", "cast(id as string) as name")
        rows.write.partitionBy("part").parquet(table)
        spark.read.parquet(table).groupBy("part").count().orderBy("part").toArrow()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        use_spark(f"{name}/table")

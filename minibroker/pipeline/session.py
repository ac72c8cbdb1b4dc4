"""Creates the Spark session of a job.

Owns the defaults of a local session, and the errors if Spark can't start; it must never know what a
job does. Invariant: under ``spark-submit``, or with a master other than ``local``, no setting of
the cluster is overridden; only the time zone is set, because results depend on it. Spark's
counterpart is ``SparkSession.builder``.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minibroker.pipeline.errors import SparkMissing
from minibroker.pipeline.spark_start import check_master, one_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""Spark's own connector to Kafka, for ``spark.jars.packages``; Maven Central has no 4.2.1 of it."""

LOCAL: Final = "local[*]"
LOCAL_MEMORY: Final = "1500m"
"""Heap size of a local JVM, unless ``spark.driver.memory`` is set."""

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_INSTALL: Final = "pip install 'minibroker[spark]'"


@contextmanager
def session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session for the job ``name``, stopped at the end.

    ``conf`` wins over every default. Raises SparkMissing when pyspark or a JVM isn't there, and
    SparkNotStarted when Spark can't start with these settings.
    """
    spark = start(name, master=master, conf=conf)
    try:
        yield spark
    finally:
        spark.stop()


def start(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Like `session`, but the caller stops it."""
    look_for_spark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"minibroker {name}")
    every = {**settings(os.environ, master), **(conf or {})}
    for key, value in every.items():
        builder = builder.config(key, value)
    if not _submitted(os.environ):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        if _local(master):
            os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if "spark.master" in every:
        check_master(every["spark.master"])
    with one_error():
        return builder.getOrCreate()


def look_for_spark() -> None:
    """Raise SparkMissing if pyspark or a JVM is missing, without starting either."""
    if find_spec("pyspark") is None:
        raise SparkMissing(f"the pipeline runs on Spark, which is not installed: {_INSTALL}")
    if not _submitted(os.environ):
        _look_for_java(os.environ)


def reads_this_machine(master: str | None, conf: Mapping[str, str]) -> bool:
    """Whether a path without a scheme is local, as far as is known before Spark starts."""
    elsewhere = any(key.endswith("fs.defaultFS") for key in conf)
    return _local(master) and not _submitted(os.environ) and not elsewhere


def connector_missing(environment: Mapping[str, str]) -> str:
    """Explain how to add the connector's jars: it depends on how the JVM was started."""
    said = "Spark's Kafka connector is missing"
    if _submitted(environment):
        return (
            f"{said}: pass it to spark-submit, before the job: --packages {CONNECTOR}, or --jars …"
        )
    return (
        f"{said}: add --conf spark.jars.packages={CONNECTOR}, or its jars with --conf spark.jars=…"
    )


def settings(environment: Mapping[str, str], master: str | None) -> dict[str, str]:
    """Settings of a session in addition to the user's and the cluster's."""
    common = {"spark.sql.session.timeZone": "UTC"}
    if _submitted(environment):
        return common
    if not _local(master):
        return {**common, "spark.master": str(master)}
    return {
        **common,
        "spark.master": master or LOCAL,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": LOCAL_MEMORY,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A short job ends before the optimizing compiler and a parallel collector pay off.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        f" -Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    }


def _submitted(environment: Mapping[str, str]) -> bool:
    """Whether ``spark-submit`` started this process, and with it the JVM."""
    return "PYSPARK_GATEWAY_PORT" in environment


def _local(master: str | None) -> bool:
    return master is None or master.split("[")[0] == "local"


def _look_for_java(environment: Mapping[str, str]) -> None:
    home = environment.get("JAVA_HOME")
    if home:
        if not os.access(os.path.join(home, "bin", "java"), os.X_OK):
            raise SparkMissing(
                f"Spark needs a JVM, and JAVA_HOME={home} has no bin/java: set it to Java 17,"
                " or unset it if java is on the path"
            )
    elif shutil.which("java") is None:
        raise SparkMissing(
            "Spark needs a JVM, and there is no java on the path: install Java 17, e.g. Debian's"
            " package openjdk-17-jre-headless, or set JAVA_HOME"
        )

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from minibroker.pipeline.errors import SparkMissing
from minibroker.pipeline.session import connector_missing, settings, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBMITTED = {"PYSPARK_GATEWAY_PORT": "4711"}


def test_session_on_this_machine_listens_on_this_machine_only(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.range(10).count() == 10


def test_python_on_both_sides_is_the_same(spark: SparkSession) -> None:
    def versions(batches):  # type: ignore[no-untyped-def]
        import pandas as pd

        for _ in batches:
            yield pd.DataFrame({"executable": [sys.executable]})

    frame = spark.range(1).mapInPandas(versions, "executable string")
    assert {row.executable for row in frame.collect()} == {sys.executable}


def test_session_keeps_settings_of_cluster() -> None:
    assert settings(SUBMITTED, None) == {"spark.sql.session.timeZone": "UTC"}
    assert settings({}, "spark://head:7077") == {
        "spark.sql.session.timeZone": "UTC",
        "spark.master": "spark://head:7077",
    }


def test_missing_connector_hint_depends_on_launcher() -> None:
    assert "add --conf spark.jars.packages=org.apache.spark:" in connector_missing({})
    said = connector_missing(SUBMITTED)
    assert "to spark-submit, before the job: --packages org.apache.spark:" in said
    assert "--conf" not in said


@pytest.mark.parametrize("master", [None, "local", "local[1]", "local[*]"])
def test_master_on_this_machine_gets_the_defaults(master: str | None) -> None:
    found = settings({}, master)
    assert found["spark.master"] == (master or "local[*]")
    assert "SerialGC" in found["spark.driver.extraJavaOptions"]


def test_missing_java_reports_install_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissing, match="install Java 17"):
        start("test")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissing, match="has no bin/java"):
        start("test")


def test_missing_spark_reports_install_hint() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; sys.modules['pyspark.sql'] = None\n"
        "from importlib import util; util.find_spec = lambda name: None\n"
        "from minibroker.pipeline.session import start\n"
        "start('test')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "pip install 'minibroker[spark]'" in ended.stderr.splitlines()[-1]

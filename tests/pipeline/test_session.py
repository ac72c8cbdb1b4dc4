from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from minibroker.pipeline.errors import PipelineError, SparkMissing, SparkNotStarted
from minibroker.pipeline.session import (
    OFFSETS,
    Files,
    cause_of,
    check_master,
    connector_missing,
    delete_incomplete_checkpoint,
    one_error,
    settings,
    start,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Start of the JVM --------------------------------------------------------------------------------

STARTS = (
    "import sys\nfrom minibroker.pipeline.commands.base import running\n"
    "import click\n"
    "@click.command()\ndef job():\n"
    "  with running('job', 'local[1]', dict(each.split('=') for each in sys.argv[1:])): pass\n"
    "job([])"
)


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[4]", "local[*,3]", "local-cluster[2,1,1024]", "yarn",
     "k8s://https://host:6443"],
)  # fmt: skip
def test_master_without_port_to_reach_is_accepted(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    "master",
    ["nowhere", "local[]", "local[x]", "local[0]", "locl[2]", "spark:", "spark://", "k8s://"],
)
def test_unknown_master_is_rejected_with_the_known_ones(master: str) -> None:
    with pytest.raises(SparkNotStarted, match=r"is no URL of a Spark master: give local\[\*\]"):
        check_master(master)


@pytest.mark.parametrize("place", ["head", "head:", ":7077", "head:port", "head:70770"])
def test_master_without_port_is_rejected(place: str) -> None:
    with pytest.raises(SparkNotStarted, match="is not host:port"):
        check_master(f"spark://{place}")


def test_one_reachable_master_is_enough(listening: int, closed_port: int) -> None:
    check_master(f"spark://127.0.0.1:{closed_port},127.0.0.1:{listening}")
    with pytest.raises(SparkNotStarted, match=rf"127.0.0.1:{closed_port}: Connection refused"):
        check_master(f"spark://127.0.0.1:{closed_port}")


EXITED = "[JAVA_GATEWAY_EXITED] Java gateway exited"
UNBOUND = (
    "An error occurred while calling None.X.\n: org.apache.spark.SparkException: no master\n"
    "\tat a.b\nCaused by: java.net.BindException: Permission denied.\n\tat c"
)
NO_HEAP = (
    "WARNING: Using incubator modules\nInvalid maximum heap size: -Xmx15xx\n"
    "Error: Could not create the Java Virtual Machine."
)
THROWN = (
    'Exception in thread "main" org.apache.spark.SparkException: Executor memory must be positive\n'
    "\tat x"
)
KILLED = (
    "ERROR StandaloneSchedulerBackend: Application has been killed. Reason: All masters are"
    " unresponsive! Giving up.\n"
)
STOPPED = ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext"


@pytest.mark.parametrize(
    ("error", "printed", "cause"),
    [
        (UNBOUND, "WARN Error", "Permission denied"),
        (STOPPED, KILLED, "All masters are unresponsive! Giving up"),
        ("x\n: java.lang.NullPointerException\n\tat a", "", "java.lang.NullPointerException"),
        (EXITED, NO_HEAP, "Invalid maximum heap size: -Xmx15xx"),
        (EXITED, THROWN, "Executor memory must be positive"),
        (f"{EXITED}\nmore", "", EXITED),
    ],
)
def test_cause_is_one_line(error: str, printed: str, cause: str) -> None:
    assert cause_of(error, printed) == cause


def _started(start: Callable[[], None]) -> None:
    with one_error():
        start()


def test_what_is_printed_during_a_start_appears_only_if_it_succeeds(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def failed() -> None:
        os.write(2, b"a stack trace\n")
        raise OSError("no port")

    with pytest.raises(SparkNotStarted, match="Spark did not start: no port;"):
        _started(failed)
    with one_error():
        os.write(2, b"a warning\n")
    os.write(2, b"later\n")
    printed = ""
    while "a warning" not in printed or "later" not in printed:
        printed += capfd.readouterr().err
    assert "a stack trace" not in printed


@pytest.mark.parametrize(
    ("setting", "cause"),
    [("spark.driver.memory=15xx", "heap size"), ("spark.driver.port=1", "startPort should be")],
)
def test_wrong_setting_is_reported_as_one_line(setting: str, cause: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS, setting], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: Spark did not start: ")
    assert cause in line


# The session -------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("by_hadoop", [False, True])
def test_files_are_written_read_renamed_and_deleted(
    spark: SparkSession, tmp_path: Path, by_hadoop: bool
) -> None:
    files = Files(spark, str(tmp_path / "table"))
    assert files.root == f"file:{tmp_path}/table"
    assert files.folder == f"{tmp_path}/table"
    if by_hadoop:
        files.folder = None
    assert files.names("a") == []
    files.write_new("a/one.json", "böse")
    assert files.read("a/one.json") == "böse"
    assert files.exists("a/one.json")
    with pytest.raises(PipelineError, match=r"a/one\.json already exists"):
        files.write_new("a/one.json", "again")
    files.rename("a/one.json", "b/c/two.json")
    assert (files.names("a"), files.names("b/c")) == ([], ["two.json"])
    with pytest.raises(PipelineError, match="cannot be renamed"):
        files.rename("a/none", "b/none")
    files.rename("b/c/two.json", "../beside/b/three.json")
    assert (tmp_path / "beside/b/three.json").read_text() == "böse"
    files.rename("../beside/b/three.json", "b/c/two.json")
    files.delete("b")
    files.delete("b")
    assert not files.exists("b/c/two.json")


def test_folder_is_locked_by_one_job(spark: SparkSession, tmp_path: Path) -> None:
    one, other = Files(spark, str(tmp_path / "table")), Files(spark, str(tmp_path / "table"))
    refused = pytest.raises(PipelineError, match=rf"by another job, process {os.getpid()}: wait")
    with one.alone(), refused, other.alone():
        pass
    with other.alone():
        pass


def test_quarantine_of_linked_table_is_beside_link(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "disk/table").mkdir(parents=True)
    (tmp_path / "table").symlink_to(tmp_path / "disk/table")
    files = Files(spark, str(tmp_path / "table"))
    files.write_new("one.json", "1")
    files.rename("one.json", "../table-quarantine/one.json")
    assert (tmp_path / "table-quarantine/one.json").read_text() == "1"
    assert not (tmp_path / "disk/table-quarantine").exists()


def test_write_new_leaves_no_temporary_file(spark: SparkSession, tmp_path: Path) -> None:
    Files(spark, str(tmp_path)).write_new("a/one.json", "1")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["one.json"]


def test_only_a_checkpoint_without_a_whole_step_is_cleared(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, half = Files(spark, str(tmp_path)), f"{OFFSETS}/.1.temporary.tmp"
    delete_incomplete_checkpoint(files)
    for whole, left in (([], []), ([f"{OFFSETS}/0"], [".1.temporary.tmp", "0"])):
        for name in [half, *whole]:
            files.write_new(name, "{}")
        delete_incomplete_checkpoint(files)
        assert files.names(OFFSETS) == left

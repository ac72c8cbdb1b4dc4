from __future__ import annotations

import socket
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from minibroker.pipeline.commands import base
from minibroker.pipeline.commands.base import check_table_exists, columns, running, session_options
from minibroker.pipeline.commands.ingest import compact
from minibroker.pipeline.commands.recommend import recommend
from minibroker.pipeline.commands.report import report
from minibroker.pipeline.commands.usage import usage
from minibroker.pipeline.commands.whatif import whatif
from minibroker.pipeline.errors import BadInput


@click.command()
@session_options
def job(master: str | None, conf: dict[str, str]) -> None:
    with running("job", master, conf):
        pass


def test_settings_of_spark_are_pairs() -> None:
    result = CliRunner().invoke(job, ["--conf", "spark.ui.port"])
    assert result.exit_code == 2
    assert "'spark.ui.port' is not key=value" in result.output


def test_setting_that_spark_would_ignore_is_rejected() -> None:
    result = CliRunner().invoke(job, ["--conf", "driver.memory=2g"])
    assert result.exit_code == 2
    assert "'driver.memory' is no setting of Spark" in result.output


@pytest.mark.parametrize("words", [["--master", "{}"], ["--conf", "spark.master={}"]])
def test_unreachable_master_is_one_line(words: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"spark://127.0.0.1:{server.getsockname()[1]}"
    result = CliRunner().invoke(job, [word.format(master) for word in words])
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: no Spark master can be reached at {master} (")
    assert result.output.count("\n") == 1


def test_foreseen_error_is_one_line() -> None:
    result = CliRunner(env={"JAVA_HOME": "/nowhere"}).invoke(job, [])
    assert result.exit_code == 1
    assert result.output.startswith("Error: Spark needs a JVM, and JAVA_HOME=/nowhere has no")


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(base, "session", started)


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (usage, ["--table", "nowhere"]),
        (compact, ["--table", "nowhere"]),
        (recommend, ["--table", "nowhere", "--into", "q"]),
        (report, ["--table", "nowhere", "--into", "page.html"]),
        (report, ["--table", ".", "--into", "page.html", "--quotas", "nowhere"]),
        (whatif, ["--table", ".", "--quotas", "nowhere"]),
        (whatif, ["--table", "nowhere", "--quotas", "empty"]),
        (whatif, ["--table", ".", "--quotas", "empty", "--set", "nowhere=1"]),
        (whatif, ["--table", ".", "--quotas", "empty", "--into", "not-nowhere"]),
        (whatif, ["--table", ".", "--quotas", "empty", "--decisions", "not-nowhere"]),
        (usage, ["--table", ".", "--into", "not-nowhere"]),
    ],
)
def test_bad_argument_is_reported_before_spark_starts(
    command: click.Command, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("")
    (tmp_path / "not-nowhere").mkdir()
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 1
    assert "nowhere" in result.output


def test_table_may_be_on_a_remote_file_system(tmp_path: Path) -> None:
    check_table_exists(str(tmp_path), None, {})
    check_table_exists("hdfs://host/table", None, {})
    check_table_exists("/tables/2026-*", None, {})
    check_table_exists("/nowhere", "spark://head:7077", {})
    check_table_exists("/nowhere", None, {"spark.hadoop.fs.defaultFS": "hdfs://host"})
    for path in ("/nowhere", "file:///nowhere"):
        with pytest.raises(BadInput, match="it does not exist"):
            check_table_exists(path, "local[2]", {})
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="it is not a directory"):
        check_table_exists(str(tmp_path / "file"), None, {})


def test_worker_error_is_reported_as_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object, **__: object) -> None:
        raise RuntimeError(f"Traceback\nminibroker.pipeline.errors.{words}\n\n\tat Spark")

    monkeypatch.setattr(base, "session", failed)
    words = "BadInput: too much at once"
    result = CliRunner().invoke(job, [])
    assert (result.exit_code, result.output) == (1, "Error: too much at once\n")
    words = (
        "An error occurred: [FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Encountered error while"
        " reading file hdfs://h/a b.parquet. Could not read footer.\n\tat org.apache"
    )
    output = CliRunner().invoke(job, []).output
    assert output.startswith(
        "Error: hdfs://h/a b.parquet cannot be read; if it is not damaged, the "
    )
    words = "Traceback\n  out.write(content)\nOSError: [Errno 28] No space left on device\n"
    output = CliRunner().invoke(job, []).output
    assert output.startswith("Error: no space left on a disk, either for the output or ")
    words = "nothing of the kind"
    assert isinstance(CliRunner().invoke(job, []).exception, RuntimeError)


def test_cells_are_aligned() -> None:
    assert list(columns(["A", "LONG"], [["wide", "1"], ["", "2"]])) == [
        "A     LONG",
        "wide  1",
        "      2",
    ]
    assert not list(columns(["A"], []))

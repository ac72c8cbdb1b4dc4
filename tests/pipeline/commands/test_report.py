from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from minibroker.pipeline.commands import report as command
from minibroker.pipeline.commands.report import report, write
from tests.pipeline.report.events import connection, dropped, request, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def activity(spark: SparkSession, tmp_path: Path) -> Path:
    path = tmp_path / "activity"
    events = [request(0, throttle_ms=300), request(1, user="bob"), connection(2, "accepted")]
    frame = table(spark, [*events, dropped(3, 7)])
    placed = frame.withColumns({"hour": F.lit("2026-11-18-11"), "bucket": F.lit(0)})
    placed.write.partitionBy("hour", "bucket").parquet(str(path))
    return path


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command in the session that the tests share."""
    monkeypatch.setattr(command, "running", lambda *_: nullcontext(spark))

    def invoke(*arguments: str | Path) -> Result:
        return CliRunner().invoke(report, [str(each) for each in arguments])

    return invoke


def test_a_table_becomes_a_page_and_a_summary(run: Any, activity: Path, tmp_path: Path) -> None:
    into = tmp_path / "page.html"
    result = run("--table", activity, "--into", into)
    assert result.exit_code == 0, result.output
    assert "3 events of 1 broker, 7 dropped; 2 entities" in result.output
    assert "2 requests, 1 held for 300 ms" in result.output
    assert "alice / etl" in result.output
    assert into.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert str(activity) in into.read_text(encoding="utf-8")


def test_a_folder_that_is_not_there_is_told_before_anything_is_read(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        report, ["--table", "x", "--into", str(tmp_path / "no" / "page.html")]
    )
    assert result.exit_code == 2
    assert f"there is no folder {tmp_path / 'no'}" in result.output


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write(path, "new \ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["page.html"]

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.pipeline.commands import report as command
from minibroker.pipeline.commands import whatif
from minibroker.pipeline.commands.report import report, write
from minibroker.pipeline.whatif.rows import OUTCOME
from tests.pipeline.report.sample_events import connection, dropped, request, table
from tests.pipeline.report.test_aggregate import row as outcome

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


def test_malformed_events_are_counted_in_the_quarantine(
    run: Any, activity: Path, tmp_path: Path, spark: SparkSession
) -> None:
    spark.range(3).write.parquet(f"{activity}-quarantine")
    into = tmp_path / "page.html"
    result = run("--table", activity, "--into", into, "--json")
    assert "dropped 7, malformed 3" in into.read_text(encoding="utf-8")
    found = json.loads(result.stdout)
    assert (found["into"], found["events"], found["dropped"]) == (str(into), 3, 7)
    assert (found["requests"], found["throttled"], found["throttle_ms"]) == (2, 1, 300)


def test_table_becomes_a_page_and_a_summary(run: Any, activity: Path, tmp_path: Path) -> None:
    into = tmp_path / "page.html"
    result = run("--table", activity, "--into", into)
    assert result.exit_code == 0, result.output
    assert "3 events of 1 broker, 7 dropped; 2 entities" in result.output
    assert "2 requests, 1 throttled for 300 ms" in result.output
    assert "alice / etl" in result.output
    assert into.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert str(activity) in into.read_text(encoding="utf-8")


def test_proposals_are_compared(
    run: Any, activity: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay has tests of its own."""
    files = [tmp_path / "tight.quotas", tmp_path / "loose.quotas"]
    for file in files:
        file.write_text("--alter --user bob --add-config producer_byte_rate=1\n")
    given: list[Any] = []
    calls: list[Any] = []

    def replayed(_: Any, table: str, proposals: Any, counting: Any, **others: Any) -> Any:
        given.extend([table, *counting.counted_from_ms, others])
        calls.append((counting.quota_window_num, [each.table.defaults for each in proposals]))
        rows = [outcome(each.name, "bob", 3, 12_000) for each in proposals]
        return spark.createDataFrame(rows, from_arrow_schema(OUTCOME))

    monkeypatch.setattr(whatif, "replayed", replayed)
    into = tmp_path / "page.html"
    options = [word for file in files for word in ("--quotas", file)]
    result = run("--table", activity, "--into", into, *options)
    assert result.exit_code == 0, result.output
    page = into.read_text(encoding="utf-8")
    assert "bob / etl under tight.quotas: 3 of 10 requests, 12 s in total" in page
    assert given == [str(activity), 1, {"closed_loop": False}]
    assert run("--table", activity, "--into", into, *options, "--closed-loop").exit_code == 0
    assert given[-1] == {"closed_loop": True}
    assert "tight.quotas, closed loop" in into.read_text(encoding="utf-8")
    pairs = ("--set", "quota.window.num=7", "--set", "quota.producer.default=5000")
    assert run("--table", activity, "--into", into, *options, *pairs).exit_code == 0
    window, defaults = calls.pop()
    assert (calls[0][0], window) == (11, 7)
    assert all(each != {} for each in defaults)


def test_bad_quota_file_is_rejected_before_reading(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "quotas.txt"
    file.write_text("--alter --user alice\n")
    result = run("--table", "nowhere", "--recommended", file)
    assert f"{file}:1: --add-config or --delete-config is missing" in result.output


def test_too_many_quota_files_are_rejected(run: Any, activity: Path) -> None:
    result = run("--table", activity, *[word for n in range(7) for word in ("--quotas", f"f{n}")])
    assert "7 quota files cannot be compared: the maximum is 6" in result.output
    four = [word for n in range(4) for word in ("--quotas", f"f{n}")]
    result = run("--table", activity, *four, "--closed-loop")
    assert "4 quota files cannot be compared in both loops: the maximum is 3" in result.output


@pytest.mark.parametrize("words", [["--closed-loop"], ["--set", "quota.window.num=5"]])
def test_quota_options_without_quota_file_are_rejected(run: Any, words: list[str]) -> None:
    result = run("--table", "x", *words)
    assert result.exit_code == 2
    assert "requires --quotas FILE" in result.output


def test_invalid_setting_is_rejected_before_reading(run: Any) -> None:
    result = run("--table", "nowhere", "--quotas", "nothing", "--set", "quota.window.num=none")
    assert result.exit_code == 1
    assert "quota.window.num" in result.output


def test_missing_output_directory_is_rejected_before_reading(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        report, ["--table", "x", "--into", str(tmp_path / "no" / "page.html")]
    )
    assert result.exit_code == 2
    assert f"there is no directory {tmp_path / 'no'}" in result.output


def test_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write(path, "new \ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["page.html"]

"""``minibroker pipeline usage``: the table, the summary, and errors."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner, Result

from minibroker.pipeline.commands import usage as command
from minibroker.pipeline.commands.usage import Interval, usage
from minibroker.pipeline.errors import WrongSchema
from minibroker.pipeline.usage import COLUMNS
from tests.pipeline.sample_events import connection, dropped, produced, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command in the session that the tests share."""
    monkeypatch.setattr(command, "running", lambda *_: nullcontext(spark))

    def invoke(*arguments: str | Path) -> Result:
        return CliRunner().invoke(usage, [str(each) for each in arguments])

    return invoke


def test_usage_table_is_written_and_printed(run: Any, spark: SparkSession, tmp_path: Path) -> None:
    events = [
        produced(1, "alice", "etl", 120_000, produce={"throttle_ms": 40}),
        produced(61, "alice", "etl", 60_000),
        connection(2, "10.0.0.9"),
        dropped(3, 2),
    ]
    activity, into = table(tmp_path / "activity", events), tmp_path / "usage"
    result = run("--table", activity, "--every", "1m", "--into", into)
    assert result.exit_code == 0, result.output
    said = [line.split("  ") for line in result.stdout.splitlines()]
    cells = [[cell.strip() for cell in line if cell] for line in said]
    assert cells[0][0].startswith("2 events are missing because brokers dropped them; the least")
    assert cells[1] == ["QUOTA", "ENTITY", "MEAN", "MAX", "THROTTLED", "FOR", "P99"]
    assert [
        "producer_byte_rate", "alice / etl", "1.5 kB/s", "2 kB/s", "1", "40 ms", "1.5 ms"
    ] in cells  # fmt: skip
    assert any(line[:2] == ["connection_creation_rate", "10.0.0.9"] for line in cells)
    printed = run("--table", activity, "--every", "1m", "--json")
    rows = [json.loads(line) for line in printed.stdout.splitlines()]
    (etl,) = [row for row in rows if row["quota"] == "producer_byte_rate"]
    assert (etl["user"], etl["client_id"], etl["throttle_ms"]) == ("alice", "etl", 40)
    assert (etl["most"], etl["ip"]) == (2000, None)
    assert "2 events are missing" in printed.stderr
    found = spark.read.parquet(str(into))
    assert found.columns == [column.name for column in COLUMNS]
    assert {row.seconds for row in found.select("seconds").collect()} == {60}
    # A second run would overwrite the result.
    again = run("--table", activity, "--into", into)
    assert again.exit_code == 1
    assert "usage already exists: remove it, or choose another" in again.output


@pytest.mark.parametrize(("text", "seconds"), [("1s", 1), ("90", 90), ("5m", 300), ("1h", 3600)])
def test_interval_is_whole_seconds(text: str, seconds: int) -> None:
    assert Interval().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["0", "1.5s", "soon", "-1"])
def test_anything_else_is_no_interval(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not an interval: write"):
        Interval().convert(text, None, None)


def test_table_of_other_version_is_rejected(run: Any, tmp_path: Path) -> None:
    events = [produced(1, "alice", "etl", 120_000, version=2)]
    result = run("--table", table(tmp_path / "activity", events))
    assert isinstance(result.exception, WrongSchema)
    assert "`version` contains 2" in str(result.exception)

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from minibroker.pipeline.commands import ingest as commands
from tests.pipeline.made import append, events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in the session of the tests."""

    @contextmanager
    def running(*_: object) -> Any:
        yield spark

    monkeypatch.setattr(commands, "running", running)


def test_a_place_that_is_neither_folder_nor_address_is_refused(tmp_path: Path) -> None:
    words = ["--from", str(tmp_path / "nowhere"), "--into", "x"]
    result = CliRunner().invoke(commands.ingest, words)
    assert result.exit_code == 2
    assert "a broker is given as host:port" in " ".join(result.output.split())


@pytest.mark.usefixtures("shared")
def test_what_was_taken_in_is_told(tmp_path: Path) -> None:
    made = events(100, 1)
    append(tmp_path / "data", [*made, made[0], b"junk"])
    words = ["--from", str(tmp_path / "data"), "--into", str(tmp_path / "activity")]
    result = CliRunner().invoke(commands.ingest, words)
    assert result.stdout.splitlines() == [
        f"100 events taken into {tmp_path}/activity",
        "1 were there already",
        f"1 are malformed: column `reason` of {tmp_path}/activity-quarantine says why",
    ]
    assert "102 records read, 100 events new" in result.stderr
    again = CliRunner().invoke(commands.ingest, words)
    assert again.stdout == f"0 events taken into {tmp_path}/activity\n"
    append(tmp_path / "data", list(events(50, 2, start=100)))
    CliRunner().invoke(commands.ingest, words)
    joined = CliRunner().invoke(commands.compact, ["--table", str(tmp_path / "activity")])
    assert joined.stdout.endswith("hours and buckets have one each\n")
    assert not joined.stdout.startswith("0 files")

from __future__ import annotations

import json
import os
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from minibroker.pipeline import cluster_access, table
from minibroker.pipeline.cluster_access import ClusterAccess
from minibroker.pipeline.commands import ingest as commands
from tests.pipeline.random_events import append, events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in the session of the tests."""

    @contextmanager
    def running(*_: object) -> Any:
        yield spark

    monkeypatch.setattr(commands, "running", running)


def test_source_neither_directory_nor_address_is_rejected(tmp_path: Path) -> None:
    words = ["--from", str(tmp_path / "nowhere"), "--into", "x"]
    result = CliRunner().invoke(commands.ingest, words)
    assert result.exit_code == 2
    assert "write a broker's address as host:port" in " ".join(result.output.split())


def test_table_path_with_glob_characters_is_rejected(tmp_path: Path) -> None:
    words = ["--from", str(tmp_path), "--into", str(tmp_path / "activity [1]")]
    result = CliRunner().invoke(commands.ingest, words)
    assert result.exit_code == 2
    assert "Spark would treat it as a pattern" in " ".join(result.output.split())


def test_command_config_is_used_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\n")
    words = ["--from", "there:9093", "--into", "x", "--command-config", str(file)]
    result = CliRunner().invoke(commands.ingest, words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{file}: SASL_SSL needs sasl.mechanism" in result.stderr
    file.write_text("security.protocol=SSL\n")
    given: list[Any] = []
    asked: list[ClusterAccess] = []
    monkeypatch.setattr(commands, "running", lambda *_: nullcontext())
    monkeypatch.setattr(table, "writing_to", lambda *_: nullcontext())

    def look(at: ClusterAccess) -> cluster_access.ReachableTopic:
        asked.append(at)
        return cluster_access.ReachableTopic("id", {})

    monkeypatch.setattr(cluster_access, "find_activity_topic", look)
    monkeypatch.setattr(commands, "_from_broker", lambda *arguments: given.extend(arguments))
    by_environment = {"MINIBROKER_COMMAND_CONFIG": str(file)}
    for more, env in ((words[-2:], {}), ([], by_environment)):
        done = CliRunner(env=env).invoke(commands.ingest, [*words[:-2], *more])
        assert done.exit_code == 0, done.output
        assert given.pop(1).read_options()["kafka.security.protocol"] == "SSL"
        assert given.pop(1) == ("id", {})
        given.clear()
    assert [each.bootstrap for each in asked] == ["there:9093"] * 2


@pytest.mark.usefixtures("shared")
def test_ingest_reports_event_counts(tmp_path: Path) -> None:
    made = events(100, 1)
    append(tmp_path / "data", [*made, made[0], b"junk"])
    words = ["--from", str(tmp_path / "data"), "--into", str(tmp_path / "activity")]
    result = CliRunner().invoke(commands.ingest, words)
    assert result.stdout.splitlines() == [
        f"100 events ingested into {tmp_path}/activity",
        "1 were already in the table",
        f"1 were malformed: see column `reason` of {tmp_path}/activity-quarantine",
    ]
    assert "102 records read, 100 new events" in result.stderr
    again = CliRunner().invoke(commands.ingest, words)
    assert again.stdout == f"0 events ingested into {tmp_path}/activity\n"
    append(tmp_path / "data", list(events(50, 2, start=100)))
    counted = CliRunner().invoke(commands.ingest, [*words, "--json"])
    activity = str(tmp_path / "activity")
    assert json.loads(counted.stdout) == {
        "into": activity, "records": 50, "events": 50, "duplicates": 0, "malformed": 0
    }  # fmt: skip
    joined = CliRunner().invoke(commands.compact, ["--table", str(tmp_path / "activity")])
    assert joined.stdout.endswith("hours and buckets have one file each\n")
    assert not joined.stdout.startswith("0 files")
    again = CliRunner().invoke(commands.compact, ["--table", activity, "--json"])
    merged = json.loads(again.stdout)
    assert (merged["table"], merged["merged"], merged["files"] > 0) == (activity, 0, True)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("job", ["ingest", "compact"])
def test_only_one_job_writes_to_a_table(spark: SparkSession, tmp_path: Path, job: str) -> None:
    append(tmp_path / "data", list(events(10, 1)))
    into = str(tmp_path / "activity")
    words = {"ingest": ["--from", str(tmp_path / "data"), "--into", into]}
    command = {"ingest": commands.ingest, "compact": commands.compact}[job]
    with table.writing_to(spark, into):
        refused = CliRunner().invoke(command, words.get(job, ["--table", into]))
        expected = f"{into} is being written to by another job, process {os.getpid()}: wait until"
        assert expected in str(refused.exception)
    done = CliRunner().invoke(command, words.get(job, ["--table", into]))
    assert done.exit_code == 0, done.output

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from pyarrow import RecordBatch

from minibroker.lab.activity.events import FIELDS
from minibroker.pipeline import session
from minibroker.pipeline.activity_table import ACTIVITY, read_activity
from minibroker.pipeline.errors import BadInput, PipelineError
from minibroker.pipeline.event_files import SORTED_BY, write_events
from minibroker.pipeline.table import Counts, Table, TableCommits, quarantine_of
from tests.pipeline.random_events import events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Commits -----------------------------------------------------------------------------------------


class Killed(Exception):
    pass


class Folder:
    """Files on this machine, with no Spark; killed before any of its changes, if wished."""

    def __init__(self, root: Path, changes: int = 10**9) -> None:
        self.root = str(root)
        self._path = root
        self.changes_left = changes

    def _change(self) -> None:
        if not self.changes_left:
            raise Killed
        self.changes_left -= 1

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def exists(self, name: str) -> bool:
        return (self._path / name).exists()

    def names(self, folder: str) -> list[str]:
        there = self._path / folder
        return sorted(path.name for path in there.iterdir()) if there.exists() else []

    def read(self, name: str) -> str:
        return (self._path / name).read_text()

    def write_new(self, name: str, text: str) -> None:
        self._change()
        if self.exists(name):
            raise PipelineError(name)
        (self._path / name).parent.mkdir(parents=True, exist_ok=True)
        (self._path / name).write_text(text)

    def rename(self, name: str, to: str) -> None:
        self._change()
        (self._path / to).parent.mkdir(parents=True, exist_ok=True)
        (self._path / name).rename(self._path / to)

    def delete(self, name: str) -> None:
        self._change()
        path = self._path / name
        if path.is_dir():
            for inner in list(path.iterdir()):
                self.changes_left += 1
                self.delete(f"{name}/{inner.name}")
            path.rmdir()
        elif path.exists():
            path.unlink()


def ledger(root: Path, changes: int = 10**9) -> TableCommits:
    folder: Any = Folder(root / "table", changes)
    return TableCommits(folder, folder_of_quarantine(root))


def folder_of_quarantine(root: Path) -> Any:
    return Folder(root / "table-quarantine")


def put(root: Path, name: str) -> str:
    path = root / "table" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
    return name


def visible(root: Path) -> set[str]:
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and "/_" not in str(path)
    }


def step(made: TableCommits, root: Path) -> None:
    add = {put(root, f"{made.staging}/{name}"): f"hour=1/{name}" for name in ("new1", "new2")}
    aside = {put(root, f"{made.staging}/bad"): "bad"}
    made.commit(add=add, aside=aside, remove=["hour=1/old"], progress={"b": 2}, held=None)


AFTER = {"table/hour=1/new1", "table/hour=1/new2", "table-quarantine/bad"}


def test_killed_step_is_applied_completely_or_not_at_all(tmp_path: Path) -> None:
    seen = set()
    for changes in range(40):
        root = tmp_path / str(changes)
        first = ledger(root)
        first.commit(
            add={put(root, f"{first.staging}/old"): "hour=1/old"},
            aside={},
            remove=[],
            progress={"a": 1},
            held=None,
        )
        try:
            step(ledger(root, changes), root)
        except Killed:
            pass
        else:
            seen.add("whole at once")
        again = ledger(root)
        if again.last.progress == {"a": 1}:
            assert visible(root) == {"table/hour=1/old"}
            seen.add("not at all")
        else:
            assert again.last.progress == {"a": 1, "b": 2}
            assert visible(root) == AFTER
            seen.add("whole")
        assert not (root / "table" / "_staging").exists()
    assert seen == {"not at all", "whole", "whole at once"}


def test_completed_step_leaves_no_temporary_files(tmp_path: Path) -> None:
    made = ledger(tmp_path)
    step(made, tmp_path)
    assert sorted(path.name for path in (tmp_path / "table").iterdir()) == ["_commits", "hour=1"]


def test_concurrent_commit_is_rejected(tmp_path: Path) -> None:
    one, other = ledger(tmp_path), ledger(tmp_path)
    one.commit(add={}, aside={}, remove=[], progress={"a": 1}, held=None)
    with pytest.raises(PipelineError):
        other.commit(add={}, aside={}, remove=[], progress={"a": 9}, held=None)
    assert ledger(tmp_path).last.progress == {"a": 1}


def test_commit_with_files_removed_by_other_writer_fails(tmp_path: Path) -> None:
    """As its progress would say that they are in the table."""
    one = ledger(tmp_path)
    written = put(tmp_path, f"{one.staging}/new")
    ledger(tmp_path)
    with pytest.raises(PipelineError, match=r"_staging/1/new was removed: another job writes to"):
        one.commit(add={written: "hour=1/new"}, aside={}, remove=[], progress={"a": 1}, held=None)
    assert ledger(tmp_path).last.progress == {}


def test_outdated_ledger_cannot_commit(tmp_path: Path) -> None:
    one = ledger(tmp_path)
    nothing: Any = {"add": {}, "aside": {}, "remove": [], "held": None}
    one.commit(progress={"a": 1}, **nothing)
    late = ledger(tmp_path)
    for number in (2, 3):
        one.commit(progress={"a": number}, **nothing)
    with pytest.raises(PipelineError, match=r"000000000001.json was removed: another job"):
        late.commit(progress={"a": 9}, **nothing)
    assert ledger(tmp_path).last.progress == {"a": 3}


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"version": 9}', "has version 9, but this minibroker"), ("{", "cannot be read")],
)
def test_ledger_that_is_not_understood_is_named(tmp_path: Path, text: str, words: str) -> None:
    put(tmp_path, "_commits/000000000001.json")
    (tmp_path / "table/_commits/000000000001.json").write_text(text)
    with pytest.raises(BadInput, match=words):
        ledger(tmp_path)


# The table ---------------------------------------------------------------------------------------

"""The first of them may have to compile what workers run."""

RAW = "topic string, partition int, offset bigint, value binary"


def records(spark: SparkSession, values: list[bytes]) -> DataFrame:
    rows = [("t", 0, at, value) for at, value in enumerate(values)]
    return spark.createDataFrame(rows, RAW)


def take(spark: SparkSession, path: Path, values: list[bytes], partitions: int = 2) -> Counts:
    frame = records(spark, values).repartition(partitions)
    return Table(spark, str(path)).step(frame, "test", {"test": len(values)}, now_ms=5)


def rows(spark: SparkSession, path: Path) -> list[str]:
    return sorted(str(row) for row in read_activity(spark, str(path)).collect())


@pytest.fixture(params=["tasks", "spark"])
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written by tasks, as on a disk, or by Spark, as on any other file system."""
    if request.param == "spark":
        monkeypatch.setattr(session, "_DISK", "nowhere:")


@pytest.mark.usefixtures("writer")
def test_usage_is_independent_of_input_order_and_cuts(spark: SparkSession, tmp_path: Path) -> None:
    made = [*events(400, 1), *events(400, 2, start=400)]
    assert take(spark, tmp_path / "one", made, 1) == Counts(800, 800, 0)
    shuffled = random.Random(3).sample(made, len(made))
    assert take(spark, tmp_path / "many", shuffled + shuffled[:99], 16) == Counts(899, 800, 0)
    assert rows(spark, tmp_path / "one") == rows(spark, tmp_path / "many")


def test_rows_written_with_one_core_equal_two_cores(spark: SparkSession, tmp_path: Path) -> None:
    made = events(300, 4)
    take(spark, tmp_path / "two", made, 8)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        take(spark, tmp_path / "one", made, 1)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))
    assert rows(spark, tmp_path / "one") == rows(spark, tmp_path / "two")


def test_duckdb_reads_the_same_out_of_the_raw_events(spark: SparkSession, tmp_path: Path) -> None:
    made = events(500, 5)
    take(spark, tmp_path / "activity", [*made, *made[:50]])
    raw = tmp_path / "raw.json"
    raw.write_bytes(b"\n".join(made))
    query = (
        'select kind, "user", count(*), sum(request_bytes), sum(request.throttle_ms),'
        " max(time_us), sum(dropped) from {} group by all order by all"
    )
    table = f"read_parquet('{tmp_path}/activity/*/*/*.parquet', hive_partitioning=true)"
    # Without a look at all lines a field that is rare would not be seen.
    source = f"read_json('{raw}', sample_size=-1)"
    found, wanted = (duckdb.execute(query.format(of)).fetchall() for of in (table, source))
    assert found == wanted
    misplaced = duckdb.execute(
        f"select count(*) from {table} where strftime(make_timestamp(time_us), '%Y-%m-%d-%H')"
        " <> hour"
    ).fetchall()
    assert misplaced == [(0,)]


@pytest.mark.usefixtures("writer")
def test_events_already_in_table_are_skipped(spark: SparkSession, tmp_path: Path) -> None:
    made = events(300, 6)
    path = tmp_path / "activity"
    assert take(spark, path, made[:200]) == Counts(200, 200, 0)
    # Late ones among them, as the events' times are all mixed.
    late = take(spark, path, made[100:])
    assert (late, late.duplicates) == (Counts(200, 100, 0), 100)
    assert take(spark, path, made) == Counts(300, 0, 0)
    take(spark, tmp_path / "once", made)
    assert rows(spark, path) == rows(spark, tmp_path / "once")
    assert len(ACTIVITY.fields) == len(FIELDS), (
        "a step must not add its columns to the shared schema"
    )


def test_commit_without_held_spans_still_skips_duplicates(
    spark: SparkSession, tmp_path: Path
) -> None:
    made, path = events(300, 6), tmp_path / "activity"
    take(spark, path, made[:200])
    (commit,) = (path / "_commits").glob("0*.json")
    found = json.loads(commit.read_text())
    assert found["held"] == {"1": [0, 199]}
    commit.write_text(json.dumps({**found, "held": None}))
    assert take(spark, path, made[100:]) == Counts(200, 100, 0)
    assert len(rows(spark, path)) == 300


@pytest.mark.usefixtures("writer")
def test_malformed_events_are_counted_and_quarantined(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "activity"
    made = events(20, 7)
    assert take(spark, path, [*made, b"junk", b'{"version":2}']) == Counts(22, 20, 2)
    assert take(spark, path, [b"junk"]) == Counts(1, 0, 1)
    aside = spark.read.parquet(quarantine_of(str(path)))
    found = sorted((row.raw, row.source, row.found_ms) for row in aside.collect())
    assert found == [
        (bytearray(b"junk"), "test", 5),
        (bytearray(b"junk"), "test", 5),
        (bytearray(b'{"version":2}'), "test", 5),
    ]
    assert len(rows(spark, path)) == 20


def test_uncommitted_files_are_ignored(spark: SparkSession, tmp_path: Path) -> None:
    made, path = events(60, 9), tmp_path / "activity"
    table = Table(spark, str(path))
    # Of a task that was tried again, or outlived its job; and with duplicates files are read again.
    for upto, wanted in ((30, Counts(30, 30, 0)), (40, Counts(40, 10, 0))):
        into = table.make_output_folder()
        assert into is not None
        lost = RecordBatch.from_pylist([{"topic": "t", "partition": 0, "offset": 0, "value": value}
                                        for value in made])  # fmt: skip
        assert list(write_events("test", 5, into)(iter([lost])))
        assert table.step(records(spark, list(made[:upto])), "test", {}, now_ms=5) == wanted
    assert len(rows(spark, path)) == 40


@pytest.mark.usefixtures("writer")
def test_rejected_input_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    assert take(spark, tmp_path / "activity", []) == Counts()


def files(path: Path) -> list[Path]:
    return sorted(path.glob("hour=*/bucket=*/*.parquet"))


def test_compaction_leaves_one_sorted_file_and_every_event(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "activity"
    made = events(300, 8)
    for start in range(0, 300, 100):
        take(spark, path, made[start : start + 100])
    before, many = rows(spark, path), files(path)
    table = Table(spark, str(path))
    assert table.compact(table.places()) > 0
    assert rows(spark, path) == before
    folders = {file.parent for file in many}
    assert len(files(path)) == len(folders) < len(many)
    assert table.compact(table.places()) == 0
    assert table.progress == {"test": 100}
    for file in files(path):
        found: Any = duckdb.execute(f"select {', '.join(SORTED_BY)} from '{file}'").fetchall()
        keys = [tuple(("", False) if key is None else (key, True) for key in row) for row in found]
        assert keys == sorted(keys)


def test_small_files_are_compacted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.pipeline.table.FILES_MAX", 2)
    path = tmp_path / "activity"
    raw = json.loads(events(1, 9)[0])
    for sequence in range(4):
        take(spark, path, [json.dumps({**raw, "sequence": sequence}).encode()])
    assert len(files(path)) <= 2
    assert len(rows(spark, path)) == 4

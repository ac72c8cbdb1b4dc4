from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minibroker.pipeline.files import buckets_of, read, versions_of
from tests.pipeline.whatif.activity import requests_table
from tests.pipeline.whatif.oracle import Event


def write(root: Path, hour: str, bucket: int, name: str, *sequences: int) -> None:
    folder = root / f"hour={hour}" / f"bucket={bucket:02}"
    folder.mkdir(parents=True, exist_ok=True)
    events = requests_table([Event(sequence, sequence) for sequence in sequences])
    pq.write_table(events, folder / f"{name}.parquet", row_group_size=2)


def sequences(root: Path, *, by_group: bool) -> list[list[list[int]]]:
    return [
        [
            part.column("sequence").to_pylist()
            for files in bucket.hours
            for part in read(files, ["sequence"], by_group=by_group)
        ]
        for bucket in buckets_of(str(root))
    ]


def test_buckets_are_read_hour_by_hour(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01-10", 1, "b", 5, 6, 7)
    write(tmp_path, "2026-01-01-09", 1, "a", 1, 2, 3)
    write(tmp_path, "2026-01-01-09", 11, "a", 4)
    assert sequences(tmp_path, by_group=False) == [[[1, 2, 3], [5, 6, 7]], [[4]]]
    assert sequences(tmp_path, by_group=True) == [[[1, 2], [3], [5, 6], [7]], [[4]]]


def test_an_hour_of_several_files_is_never_cut(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01-09", 0, "a", 1, 3, 5)
    write(tmp_path, "2026-01-01-09", 0, "b", 2)
    assert sequences(tmp_path, by_group=True) == [[[1, 3, 5, 2]]]


def test_what_is_elsewhere_or_no_table_has_no_buckets(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01-09", 0, "a", 1)
    assert len(buckets_of(tmp_path.as_uri())) == 1
    assert buckets_of("hdfs://host/table") == []
    assert buckets_of(str(tmp_path / "nothing")) == []


def test_paths_lead_from_the_root_as_workers_are_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "table", "2026-01-01-09", 0, "a", 1)
    monkeypatch.chdir(tmp_path)
    assert buckets_of("table") == buckets_of(str(tmp_path / "table"))


@pytest.mark.parametrize("statistics", [True, False])
def test_versions_are_those_of_all_rows(tmp_path: Path, statistics: bool) -> None:
    files = []
    for name, versions in {"a": [1, 1], "b": [1, 2, 1], "c": [1, None]}.items():
        table = pa.table({"version": pa.array(versions, pa.int32())})
        pq.write_table(table, tmp_path / name, row_group_size=2, write_statistics=statistics)
        files.append(str(tmp_path / name))
    assert [set(versions_of([file])) for file in files] == [{1}, {1, 2}, {1, None}]

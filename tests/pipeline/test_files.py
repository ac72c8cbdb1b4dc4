from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.files import buckets_of, files_of, footer_of, on_disk, read
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


def test_hour_of_several_files_is_never_cut(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01-09", 0, "a", 1, 3, 5)
    write(tmp_path, "2026-01-01-09", 0, "b", 2)
    assert sequences(tmp_path, by_group=True) == [[[1, 3, 5, 2]]]


def test_buckets_of_remote_or_missing_table_are_empty(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01-09", 0, "a", 1)
    assert len(buckets_of(tmp_path.as_uri())) == 1
    assert buckets_of("hdfs://host/table") == []
    assert buckets_of(str(tmp_path / "nothing")) == []


def test_paths_are_made_absolute_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "table", "2026-01-01-09", 0, "a", 1)
    monkeypatch.chdir(tmp_path)
    assert buckets_of("table") == buckets_of(str(tmp_path / "table"))


@pytest.mark.parametrize("statistics", [True, False])
def test_versions_match_all_api_rows(tmp_path: Path, statistics: bool) -> None:
    files = []
    for name, versions in {"a": [1, 1], "b": [1, 2, 1], "c": [1, None]}.items():
        table = pa.table({"version": pa.array(versions, pa.int32())})
        pq.write_table(table, tmp_path / name, row_group_size=2, write_statistics=statistics)
        files.append(str(tmp_path / name))
    assert [footer_of(file).versions for file in files] == [{1}, {1, 2}, {1, None}]


def test_truncated_or_missing_file_is_reported_by_name(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01-09", 0, "a", *range(1000))
    (file,) = files_of(str(tmp_path))
    whole = Path(file).read_bytes()
    for left in (0, 3, 400, len(whole) - 1):
        Path(file).write_bytes(whole[:left])
        for look in (footer_of, lambda file: [*read([file], ["sequence"], by_group=True)]):
            with pytest.raises(BadInput, match=f"{file} cannot be read as Parquet .*; it may be"):
                look(file)
    # The pages alone: all that the footer says is still there.
    Path(file).write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    for by_group in (True, False):
        with pytest.raises(BadInput, match="cannot be read as Parquet"):
            list(read([file], ["sequence"], by_group=by_group))
    Path(file).unlink()
    with pytest.raises(
        BadInput, match=r"was removed; the table was compacted in the meantime: run this"
    ):
        footer_of(file)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("a/b", "a/b"),
        ("a#b?c", "a#b?c"),
        ("a:b", "a:b"),
        ("/a%20b", "/a%20b"),
        ("file:/a", "/a"),
        ("file:///a#1", "/a#1"),
        ("hdfs://host/a", None),
        ("s3a://bucket/a", None),
    ],
)
def test_path_is_parsed_as_in_hadoop(path: str, place: str | None) -> None:
    assert on_disk(path) == (None if place is None else Path(place))

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from minibroker.pipeline.errors import PipelineError
from minibroker.pipeline.hadoop import OFFSETS, Files, delete_incomplete_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

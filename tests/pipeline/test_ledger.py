from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minibroker.pipeline.errors import BadInput, PipelineError
from minibroker.pipeline.ledger import TableCommits


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

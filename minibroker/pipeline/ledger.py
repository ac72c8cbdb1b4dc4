"""The log of changes to an activity table, which makes each step atomic.

Owns the commits: a step's files are written to a staging folder, then one small file lists those to
add, those to remove, and the progress of the source. That file makes the step permanent; moving the
files may follow later, and the next run completes it after a kill. It must never know the files'
contents. Invariant: the table's contents and the progress are those of the last commit. Spark's
file sink has a similar log, but can't replace files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from minibroker.pipeline.errors import BadInput, PipelineError
from minibroker.pipeline.hadoop import ANOTHER, Files

COMMITS: Final = "_commits"
STAGING: Final = "_staging"
"""Spark ignores names with a leading underscore."""
VERSION: Final = 1
_DIGITS: Final = 12


@dataclass(frozen=True)
class Commit:
    """One step. Paths are relative to the table; targets in ``aside`` to the quarantine."""

    number: int = 0
    add: dict[str, str] = field(default_factory=dict)
    """Staged file -> its path in the table."""
    aside: dict[str, str] = field(default_factory=dict)
    """Staged file -> its path in the quarantine."""
    remove: list[str] = field(default_factory=list)
    progress: dict[str, Any] = field(default_factory=dict)
    """Source -> how much of it was read."""
    held: dict[str, list[int]] | None = None
    """Broker -> sequences in the table, as in ``spans_to_json``; None if unknown."""


class TableCommits:
    """A table's commits; there may be only one writer at a time."""

    def __init__(self, table: Files, quarantine: Files) -> None:
        self._table = table
        self._quarantine = quarantine
        self.last = self._load()
        self._carry_out(self.last)
        table.delete(STAGING)

    @property
    def staging(self) -> str:
        """The folder for the next step's files, relative to the table."""
        return f"{STAGING}/{self.last.number + 1}"

    def commit(
        self,
        *,
        add: dict[str, str],
        aside: dict[str, str],
        remove: list[str],
        progress: dict[str, Any],
        held: dict[str, list[int]] | None,
    ) -> None:
        """Commit a step; ``progress`` has the sources that advanced.

        Raises PipelineError if another writer started since, because it deletes the staged
        files.
        """
        done = {**self.last.progress, **progress}
        before = self.last
        needed = [*add, *aside, *([_name(before.number)] if before.number else [])]
        for name in needed:
            if not self._table.exists(name):
                raise PipelineError(f"{self._table.path(name)} was removed: {ANOTHER}")
        step = Commit(before.number + 1, add, aside, remove, done, held)
        text = json.dumps({"version": VERSION, **step.__dict__})
        self._table.write_new(_name(step.number), text)
        self._carry_out(step)
        self.last = step
        if before.number:
            self._table.delete(_name(before.number))
        self._table.delete(STAGING)  # With the folder itself: this is the only writer.

    def _carry_out(self, step: Commit) -> None:
        for written, place in step.add.items():
            if self._table.exists(written):
                self._table.rename(written, place)
        for written, place in step.aside.items():
            if self._table.exists(written):
                self._move_aside(written, place)
        for place in step.remove:
            self._table.delete(place)

    def _move_aside(self, written: str, place: str) -> None:
        self._table.rename(written, f"../{_last(self._quarantine.root)}/{place}")

    def _load(self) -> Commit:
        names = [name for name in self._table.names(COMMITS) if not name.startswith(("_", "."))]
        if not names:
            return Commit()
        name = f"{COMMITS}/{names[-1]}"
        try:
            found = json.loads(self._table.read(name))
            version = found.pop("version")
            if version != VERSION:
                raise BadInput(
                    f"{self._table.path(name)} has version {version}, but this minibroker supports"
                    f" only version {VERSION}: use the minibroker that wrote it"
                )
            return Commit(**found)
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"{self._table.path(name)} cannot be read ({error}): ingest into a new path"
            ) from error


def _name(number: int) -> str:
    return f"{COMMITS}/{number:0{_DIGITS}d}.json"


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]

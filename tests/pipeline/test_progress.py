"""Progress of a job: what is printed, and when."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from minibroker.pipeline import progress
from minibroker.pipeline.progress import ProgressLines, StageTasks, progress_printed


def test_stage_is_printed_only_if_it_lasts() -> None:
    lines = ProgressLines(100)
    assert lines.line(105, {}) is None
    assert lines.line(110, {1: StageTasks(2, 10)}) is None
    assert lines.line(115, {1: StageTasks(4, 10)}) == "   15.0 s  4 of 10 tasks done"
    assert lines.line(120, {2: StageTasks(0, 7)}) is None


def test_stages_that_run_at_once_are_added_up() -> None:
    lines = ProgressLines(0)
    both = {1: StageTasks(2000, 3000), 2: StageTasks(1, 10)}
    lines.line(5, both)
    assert lines.line(10, {**both, 3: StageTasks(5, 6)}) == "   10.0 s  2,001 of 3,010 tasks done"


def test_progress_that_did_not_change_is_not_repeated() -> None:
    lines = ProgressLines(0)
    lines.line(5, {1: StageTasks(2, 10)})
    assert lines.line(10, {1: StageTasks(2, 10)}) is not None
    assert lines.line(15, {1: StageTasks(2, 10)}) is None
    assert lines.line(20, {1: StageTasks(3, 10)}) is not None


def test_ended_jvm_has_no_progress() -> None:
    def ended() -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=ended))
    assert progress._running(spark) == {}


def test_progress_of_running_stages_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PROGRESS_EVERY_S", 0.001)
    stages = {4: SimpleNamespace(numCompletedTasks=3, numTasks=8), 5: None}
    tracker = SimpleNamespace(getActiveStageIds=lambda: list(stages), getStageInfo=stages.get)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    printed: list[str] = []
    is_printed = threading.Event()

    def echo(line: str) -> None:
        printed.append(line)
        is_printed.set()

    with progress_printed(spark, echo):
        assert is_printed.wait(30)
    assert printed[0].endswith("s  3 of 8 tasks done")
    assert not [each for each in threading.enumerate() if each.name == "progress"]

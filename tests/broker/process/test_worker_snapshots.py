"""The order of a worker's steps; whole brokers are in `tests/simulation/test_snapshots.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from minibroker.broker.log.errors import LogError
from minibroker.broker.log.manager import SavedLogs
from minibroker.broker.process.messages import PauseRequests, RestoreLogs, ResumeRequests, SaveLogs
from minibroker.broker.process.worker_snapshots import WorkerSnapshots
from minibroker_protocol.errors import ErrorCode


class Steps:
    """Records the steps of a worker; a step with an error raises it."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.errors: dict[str, Exception] = {}

    def part(self, *names: str, result: object = None) -> Any:
        return type("Part", (), {name: self._step(name, result) for name in names})()

    def _step(self, name: str, result: object) -> Any:
        def step(_: object, *arguments: object, **options: object) -> object:
            self.taken.append(name)
            if name in self.errors:
                raise self.errors[name]
            return result

        return step

    @asynccontextmanager
    async def without_cleaning(self) -> AsyncIterator[None]:
        self.taken.append("cleaner paused")
        yield
        self.taken.append("cleaner resumed")

    async def hold_markers(self) -> None:
        self.taken.append("hold")


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def snapshots(steps: Steps) -> WorkerSnapshots:
    transactions = steps.part("reset", "release_markers")
    transactions.hold_markers = steps.hold_markers
    return WorkerSnapshots(
        steps.part("save", "restore", "note_saved", result=SavedLogs(3, 4)),
        steps.part("forget_all"),
        steps.part("reset"),
        transactions,
        without_cleaning=steps.without_cleaning,
        load=lambda: steps.taken.append("load"),
    )


async def test_logs_are_restored_while_nothing_is_cleaned(
    steps: Steps, snapshots: WorkerSnapshots
) -> None:
    assert await snapshots.handle(RestoreLogs("s", "/s")) == ""
    assert steps.taken == [
        "cleaner paused",
        *("reset", "reset", "restore", "forget_all", "load", "note_saved"),
        "cleaner resumed",
    ]


async def test_logs_are_loaded_after_a_failed_restore(
    steps: Steps, snapshots: WorkerSnapshots
) -> None:
    steps.errors["restore"] = OSError("no space")
    assert await snapshots.handle(RestoreLogs("s", "/s")) == "no space"
    assert steps.taken[-3:] == ["forget_all", "load", "cleaner resumed"]


@pytest.mark.parametrize(
    "error", [OSError("broken"), LogError(ErrorCode.KAFKA_STORAGE_ERROR, "broken")]
)
async def test_failed_save_is_explained(
    steps: Steps, snapshots: WorkerSnapshots, error: Exception
) -> None:
    assert await snapshots.handle(SaveLogs("s", "/s")) == SavedLogs(3, 4)
    steps.errors["save"] = error
    assert await snapshots.handle(SaveLogs("s", "/s")) == "broken"


async def test_pause_holds_markers(steps: Steps, snapshots: WorkerSnapshots) -> None:
    await snapshots.handle(PauseRequests())
    await snapshots.handle(ResumeRequests())
    assert steps.taken == ["hold", "release_markers"]


async def test_unknown_request_is_an_error(snapshots: WorkerSnapshots) -> None:
    with pytest.raises(TypeError, match="str"):
        await snapshots.handle("?")

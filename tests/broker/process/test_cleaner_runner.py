from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from minibroker.broker.log.cleaner.cleaning import CleaningFailedError
from minibroker.broker.process.cleaner_runner import (
    CleanerEndedError,
    CleanerRunner,
    LoopRunner,
    ProcessRunner,
)
from tests.broker.process.test_cleaner_child import task


@pytest.fixture(params=[LoopRunner, ProcessRunner])
async def runner(request: pytest.FixtureRequest) -> AsyncIterator[CleanerRunner]:
    made: CleanerRunner = request.param()
    yield made
    await made.close()


async def test_runner_returns_results_and_errors(runner: CleanerRunner, tmp_path: Path) -> None:
    assert (await runner.run(task(tmp_path), 1e9)).records_kept == 1
    with pytest.raises(CleaningFailedError, match="No such file"):
        await runner.run(task(tmp_path)._replace(directory="/nowhere"), 1e9)
    await runner.close()
    assert (await runner.run(task(tmp_path), 1e9)).records_kept == 1


async def test_process_that_was_killed_is_replaced(tmp_path: Path) -> None:
    runner = ProcessRunner()
    await runner.run(task(tmp_path), 1e9)
    assert runner._process is not None
    runner._process.kill()
    await runner._process.wait()
    with pytest.raises(CleanerEndedError):
        await runner.run(task(tmp_path), 1e9)
    assert (await runner.run(task(tmp_path), 1e9)).records_kept == 1
    await runner.close()

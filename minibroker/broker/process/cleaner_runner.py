"""Runs the tasks of a log cleaner: in a process of its own, or step by step in the loop.

Owns the process. It must never know logs. Invariant: at most one task runs, and the process is
ended with the runner. The steps in the loop are for a broker that runs as tasks, on a clock that a
test controls.
"""

from __future__ import annotations

import os
import pickle
import subprocess
from contextlib import suppress
from typing import Protocol

import trio

from minibroker.broker.log.cleaner.cleaning import (
    CleaningFailedError,
    CleaningResult,
    CleaningTask,
    clean,
)
from minibroker.broker.process.cleaner_child import LENGTH
from minibroker.python_command import python_command


class CleanerEndedError(Exception):
    """The process ended before it returned a result."""


class CleanerRunner(Protocol):
    """Runs one task at a time."""

    async def run(self, task: CleaningTask, bytes_per_second: float) -> CleaningResult:
        """Run a task. Raises as ``clean``, and CleanerEndedError."""

    async def close(self) -> None:
        """End what the runner has started; it may be used again."""


class LoopRunner:
    """Runs the steps of a task in the event loop."""

    async def run(self, task: CleaningTask, bytes_per_second: float) -> CleaningResult:
        del bytes_per_second
        steps = clean(task)
        while True:
            await trio.lowlevel.checkpoint()
            try:
                next(steps)
            except StopIteration as end:
                result: CleaningResult = end.value
                return result

    async def close(self) -> None:
        """Do nothing."""


class ProcessRunner:
    """Runs tasks in a process that starts with the first one."""

    def __init__(self) -> None:
        self._process: trio.Process | None = None

    async def run(self, task: CleaningTask, bytes_per_second: float) -> CleaningResult:
        try:
            result = await self._request((task, bytes_per_second))
        except (OSError, EOFError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            await self.close()
            raise CleanerEndedError(f"the process that cleans logs ended: {error}") from error
        except BaseException:
            await self.close()
            raise
        if isinstance(result, CleaningFailedError | OSError):
            raise result
        assert isinstance(result, CleaningResult)
        return result

    async def _request(self, request: object) -> object:
        if self._process is None:
            self._process = await _start()
        source, target = self._process.stdout, self._process.stdin
        assert source is not None
        assert target is not None
        body = pickle.dumps(request, 5)
        await target.send_all(LENGTH.pack(len(body)) + body)
        (length,) = LENGTH.unpack(await _receive(source, LENGTH.size))
        return pickle.loads(await _receive(source, length))  # noqa: S301 - packed by the child

    async def close(self) -> None:
        """Kill the process, and wait until it is gone, also if cancelled."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                await stream.aclose()


async def _start() -> trio.Process:
    program = "from minibroker.broker.process.cleaner_child import main; main()"
    return await trio.lowlevel.open_process(
        python_command(program, str(os.getpid())),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


async def _receive(source: trio.abc.ReceiveStream, size: int) -> bytes:
    """Receive ``size`` bytes. Raises EOFError."""
    data = bytearray()
    while len(data) < size:
        chunk = await source.receive_some(size - len(data))
        if not chunk:
            raise EOFError("it closed its output")
        data += chunk
    return bytes(data)

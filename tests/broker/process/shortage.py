"""A shortage of descriptors, and real time that passes while the broker's clock is frozen."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.process.environment import Environment
from minibroker.runtime.addressing import MemorySource
from minibroker.runtime.handoff import Connection


class Short(MemorySource):
    """Connections that cannot be accepted at first."""

    def __init__(self, failures: int = 2) -> None:
        super().__init__()
        self.failures = failures

    async def accept(self) -> Connection:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await super().accept()


class RealTime:
    """Real time that passes only when a test calls ``pass_s``."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._passed = trio.Event()

    async def sleep(self, seconds: float) -> None:
        until_s = round(self.now_s + seconds, 3)
        while self.now_s < until_s:
            await self._passed.wait()

    async def pass_s(self, seconds: float) -> None:
        """Let seconds pass in steps that are shorter than any pause."""
        for _ in range(round(seconds / 0.05)):
            await wait_all_tasks_blocked()
            self.now_s = round(self.now_s + 0.05, 3)
            passed, self._passed = self._passed, trio.Event()
            passed.set()
        await wait_all_tasks_blocked()


@contextmanager
def frozen(clock: MockClock) -> Iterator[None]:
    """Freeze the broker's clock."""
    clock.autojump_threshold, before = math.inf, clock.autojump_threshold
    began = clock.current_time()
    yield
    assert clock.current_time() == began
    clock.autojump_threshold = before


def conditions(env: Environment) -> list[str]:
    return [each.kind.value for each in env.conditions.all()]

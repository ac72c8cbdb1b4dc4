"""The environment of a role, for tests of one role or a few."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.metrics.metrics import ProcessMetrics
from minibroker.broker.process.environment import (
    ACCEPTOR,
    CONTROLLER,
    PROCESSOR,
    RECORDER,
    WORKER,
    Environment,
    role_name,
)
from minibroker.broker.process.journal_counts import JournalCounts
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.settings import Settings
from minibroker.lab.observers.attaching import ProcessObservers
from minibroker.runtime.addressing import MemoryTransport
from minibroker.runtime.arena import Arena
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.worktime import WorkTime
from tests.broker.process.shortage import RealTime

MakeEnvironment = Callable[..., Environment]

ROLE_NAMES = [
    *(role_name(role, 0) for role in (CONTROLLER, ACCEPTOR, RECORDER)),
    *(role_name(role, index) for role in (PROCESSOR, WORKER) for index in range(4)),
]


class LoopClock(SimulatedClock):
    """Right also in tests that do not name the mock clock, which then run on the real one."""

    def now(self) -> float:
        return trio.current_time()


@pytest.fixture
def make_env(autojump_clock: MockClock, tmp_path: Path) -> MakeEnvironment:
    """``make_env("worker", 1, workers=2)``: all made by one fixture share what roles share."""
    transport = MemoryTransport()
    settings = Settings.from_sources(pairs=["group.initial.rebalance.delay.ms=0"])
    arena = Arena.create(settings.request_memory_bytes, 2)
    ledger = QuotaLedger(11, 1000, shared=False)
    counts = JournalCounts(ROLE_NAMES)

    def make(role: str, index: int = 0, **changes: Any) -> Environment:
        given: dict[str, Any] = {
            "role": role,
            "index": index,
            "incarnation": 1,
            "processors": 1,
            "workers": 1,
            "settings": settings,
            "transport": transport,
            "clock": LoopClock(autojump_clock),
            "arena": arena,
            "ledger": ledger,
            "started_us": 1,
            "metrics": ProcessMetrics(role_name(role, index)),
            "work_time": WorkTime(),
            "random": Random(1),
            "data_dir": tmp_path,
            "journal_counts": counts,
            "ready": lambda: None,
        }
        return ProcessObservers(counts).prepare(Environment(**{**given, **changes}))

    return make


@pytest.fixture
def real_time(monkeypatch: pytest.MonkeyPatch) -> RealTime:
    """Real time that the test advances, also while the broker's clock is frozen."""
    made = RealTime()
    monkeypatch.setattr(SimulatedClock, "sleep_real", lambda _, seconds: made.sleep(seconds))
    monkeypatch.setattr(SimulatedClock, "real_s", lambda _: made.now_s)
    return made

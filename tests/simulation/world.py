"""What surrounds a simulated run: settings of its broker, its errors in the log, its scheduler.

Owns what a seed determines outside of brokers and clients. It must never know an actor. Invariant:
a run depends on the seed alone, not on the machine, the hash seed or the real time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import trio


def layout(seed: int) -> list[str]:
    """Settings of one run: few or many processes, and little or much memory for requests."""
    random = Random(f"{seed} layout")
    return [
        f"num.network.threads={random.choice((1, 2, 2, 3))}",
        f"num.io.threads={random.choice((1, 2, 2, 4))}",
        f"process.mode={random.choice(('combined', 'separate'))}",
        f"socket.request.max.bytes={random.choice((65_536, 1 << 20))}",
        f"acceptor.mode={random.choice(('single', 'sharded'))}",
    ]


@contextmanager
def logged_errors() -> Iterator[list[str]]:
    """Return the broker's errors in the log of this context: there should be none."""
    errors: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR:
                fields = getattr(record, "fields", "")
                errors.append(f"{record.getMessage()} {fields} {record.exc_info or ''}")

    logger, collector = logging.getLogger("minibroker"), Collector()
    before = logger.propagate
    logger.addHandler(collector)
    logger.propagate = False
    try:
        yield errors
    finally:
        logger.removeHandler(collector)
        logger.propagate = before


@contextmanager
def scheduled_by(seed: int) -> Iterator[None]:
    """Within this, trio's scheduler takes its chances from ``seed``."""
    scheduler: Any = trio._core._run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r = Random(f"{seed} scheduler")
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r = before

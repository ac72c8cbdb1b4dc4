"""Logs in a folder that goes away, and batches as producers send them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.segment import ActiveSegment, SegmentFiles
from minibroker_protocol.records import Record, build_batch

NOW_MS = 1_700_000_000_000

OpenLog = Callable[..., Log]
MakeBatch = Callable[..., bytes]


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[OpenLog]:
    """Open the log ``t-0``, with settings as keywords. All logs are closed at the end."""
    opened: list[Log] = []

    def open_one(*, now_ms: int = NOW_MS, **settings: Any) -> Log:
        opened.append(Log.open(tmp_path, "t", 0, LogConfig(**settings), now_ms=now_ms))
        return opened[-1]

    yield open_one
    for log in opened:
        log.abandon()


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[ActiveSegment]:
    segment = ActiveSegment(str(tmp_path), 100, SegmentFiles(), now_ms=0)
    yield segment
    segment.close()


@pytest.fixture
def batch() -> MakeBatch:
    """Make a batch of records with the given timestamps (ms after NOW_MS); options as keywords."""

    def make(*after_ms: int, value: bytes = b"value", **options: Any) -> bytes:
        times = after_ms or (0,)
        return build_batch(
            [Record(timestamp=NOW_MS + after, key=b"k", value=value) for after in times], **options
        )

    return make

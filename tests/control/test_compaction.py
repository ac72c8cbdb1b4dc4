from __future__ import annotations

from minibroker.control.backend import Backend
from minibroker.control.compaction import CompactionBackend


def test_backend_can_compact() -> None:
    assert CompactionBackend in Backend.__mro__

from __future__ import annotations

from minibroker.lab.control.backend import Backend
from minibroker.lab.control.compaction import CompactionBackend


def test_backend_can_compact() -> None:
    assert CompactionBackend in Backend.__mro__

"""What a process takes is seen to grow with what it takes."""

from __future__ import annotations

from minibroker.runtime.memory import resident_bytes


def test_memory_that_is_used_is_counted() -> None:
    before = resident_bytes()
    taken = bytearray(b"x" * 50_000_000)
    assert 40_000_000 < resident_bytes() - before < 400_000_000
    assert taken

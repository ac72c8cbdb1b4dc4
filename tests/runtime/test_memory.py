"""Resident memory grows with use, and is read without a new descriptor."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from minibroker.runtime.memory import resident_memory


def test_memory_that_is_used_is_counted() -> None:
    resident_bytes = resident_memory()
    before = resident_bytes()
    taken = bytearray(b"x" * 50_000_000)
    assert 40_000_000 < resident_bytes() - before < 400_000_000
    assert taken


def test_resident_memory_without_a_free_descriptor_is_read() -> None:
    resident_bytes = resident_memory()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    # Above the highest one in use, so that the test itself can fill the rest.
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        assert resident_bytes() > 0
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

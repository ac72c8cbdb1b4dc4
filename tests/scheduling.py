"""Which worker of xdist runs which tests, and when.

Owns the unit of work and its order; it must never know what is tested. Invariant: files of a unit
run in one worker, so that what takes long to prepare is prepared once. A file that takes long runs
early, or one worker would still be at it when all others have ended.
"""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadFileScheduling

ONE_WORKER: Final = ("tests/pipeline/",)
"""Folders of which all files are one unit: they share a JVM and functions compiled by numba."""
LONGEST: Final = (
    *ONE_WORKER,
    "tests/simulation/test_runs.py",
    "tests/simulation/test_defects.py",
    "tests/test_docs.py",
    "tests/testing/",
    "tests/simulation/",
)
"""Folders and files that run first, the longest at the beginning."""


def unit_of(nodeid: str) -> str:
    """The unit of work that a test belongs to."""
    return next(filter(nodeid.startswith, ONE_WORKER), nodeid.split("::", 1)[0])


def place_of(nodeid: str) -> int:
    """Tests with a smaller place run earlier."""
    found = (place for place, path in enumerate(LONGEST) if nodeid.startswith(path))
    return next(found, len(LONGEST))


class UnitScheduling(LoadFileScheduling):  # type: ignore[misc] # xdist ships no types
    """Gives a worker complete units, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

"""Hold points that a test controls."""

from __future__ import annotations

from collections.abc import Callable


class TestHoldPoints:
    """Holds at some points, until the test releases."""

    __test__ = False

    def __init__(self, *points: str) -> None:
        self.points = points
        self.held: list[tuple[str, str]] = []
        self._then: list[Callable[[], object]] = []

    def may_hold(self, point: str, subject: str) -> bool:
        del subject
        return point in self.points

    def hold(self, point: str, subject: str, then: Callable[[], object]) -> None:
        self.held.append((point, subject))
        self._then.append(then)

    def release(self) -> None:
        """Let all continue."""
        then, self._then = self._then, []
        self.held.clear()
        for each in then:
            each()

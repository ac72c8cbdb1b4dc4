"""What a request may change: asked once for each topic, and not at all if it is only a try."""

from __future__ import annotations

from minibroker.cluster.mutations import TOO_MUCH, Allowance, freely


def test_a_topic_is_asked_about_once() -> None:
    asked: list[int] = []

    def take(partitions: int) -> bool:
        asked.append(partitions)
        return len(asked) == 1

    allowance = Allowance(take)
    assert [allowance.check("a", "plan", 3) for _ in range(3)] == ["plan"] * 3
    assert [allowance.check("b", "plan", 4) for _ in range(2)] == [TOO_MUCH] * 2
    assert asked == [3, 4]
    assert Allowance(take, counts=False).check("c", "plan", 5) == "plan"
    assert asked == [3, 4]
    assert freely(10**9)

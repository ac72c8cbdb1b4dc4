"""Names of close reasons."""

from __future__ import annotations

from minibroker.broker.metrics.close_reason import CloseReason


def test_close_reasons_are_unique_labels() -> None:
    names = [reason.value for reason in CloseReason.__members__.values()]
    assert len(set(names)) == len(CloseReason.__members__)
    assert all(name.replace("_", "").isalpha() and name.islower() for name in names)

from __future__ import annotations

import gc

import pytest

from minibroker.pipeline.workers import freeze_loaded_objects


def test_loaded_objects_are_excluded_from_gc() -> None:
    before = gc.get_freeze_count()
    loaded = [[]] * 10  # type: ignore[var-annotated]
    freeze_loaded_objects()
    assert gc.get_freeze_count() > before
    assert not any(each is loaded for each in gc.get_objects())


@pytest.mark.parametrize("turn", [1, 2])
def test_frozen_objects_are_returned_at_the_end_of_a_test(turn: int) -> None:
    assert not gc.get_freeze_count(), turn
    freeze_loaded_objects()

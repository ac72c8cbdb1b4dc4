from __future__ import annotations

import gc

from minibroker.pipeline.workers import freeze_loaded_objects


def test_loaded_objects_are_excluded_from_gc() -> None:
    before = gc.get_freeze_count()
    loaded = [[]] * 10  # type: ignore[var-annotated]
    try:
        freeze_loaded_objects()
        assert gc.get_freeze_count() > before
        assert not any(each is loaded for each in gc.get_objects())
    finally:
        gc.unfreeze()

from __future__ import annotations

import gc

from minibroker.pipeline.workers import settle_in


def test_settle_in_excludes_loaded_objects_from_gc() -> None:
    before = gc.get_freeze_count()
    loaded = [[]] * 10  # type: ignore[var-annotated]
    try:
        settle_in()
        assert gc.get_freeze_count() > before
        assert not any(each is loaded for each in gc.get_objects())
    finally:
        gc.unfreeze()

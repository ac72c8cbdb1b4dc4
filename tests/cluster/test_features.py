from __future__ import annotations

from minibroker.cluster.features import TRANSACTION_VERSION, FinalizedLevels, level
from minibroker.cluster.image import FeaturesChanged, Image, apply


def test_level_is_the_default_until_it_is_set() -> None:
    image = Image()
    assert level(image.features, TRANSACTION_VERSION) == 2
    changed = apply(image, FeaturesChanged(FinalizedLevels({"transaction.version": 1}, 1)))
    assert level(changed.features, TRANSACTION_VERSION) == 1
    assert level(image.features, TRANSACTION_VERSION) == 2

"""Feature levels in the store: written, read, and ignored if invalid."""

from __future__ import annotations

import pytest

from minibroker.broker.metadata import stored_features
from minibroker.broker.metadata.features import FinalizedLevels
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.stored_features import decode_features, encode_features

LEVELS = FinalizedLevels({"transaction.version": 1}, 3)


async def test_levels_are_read_as_stored() -> None:
    store = SqliteStore(MEMORY)
    assert await stored_features.load(store) == FinalizedLevels()
    for levels in (LEVELS, LEVELS._replace(epoch=4)):
        await store.multi(await stored_features.steps(store, levels))
        assert await stored_features.load(store) == levels
    await store.close()


def test_node_is_kafkas() -> None:
    assert encode_features(LEVELS) == (
        b'{"version":2,"status":1,"features":{"transaction.version":1},"epoch":3}'
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"features":5}',
        b'{"features":{"transaction.version":9}}',
        b'{"features":{"transaction.version":{"max_version_level":1}}}',
        b'{"features":{"other":1}}',
    ],
)
def test_invalid_node_has_no_levels(data: bytes) -> None:
    assert decode_features(data).levels == {}

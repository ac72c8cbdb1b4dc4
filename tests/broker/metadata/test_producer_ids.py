"""Producer ids are returned once, also by a later controller."""

from __future__ import annotations

from minibroker.broker.metadata.producer_ids import PRODUCER_IDS_PER_BLOCK, allocate
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore


async def test_producer_id_blocks_of_all_brokers_are_consecutive() -> None:
    store = SqliteStore(MEMORY)
    blocks = [await allocate(store, broker_id) for broker_id in (1, 2, 1)]
    assert [block.first for block in blocks] == [n * PRODUCER_IDS_PER_BLOCK for n in range(3)]
    assert {block.size for block in blocks} == {PRODUCER_IDS_PER_BLOCK}
    await store.close()

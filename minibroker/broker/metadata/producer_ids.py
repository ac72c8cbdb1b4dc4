"""Blocks of producer ids, each returned once.

Owns the node with the latest block. It must never know who uses the ids. Invariant: a block is
stored before it is returned, so no id is returned twice, whichever process dies. Kafka's
``ZkProducerIdManager``.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.metadata import layout
from minibroker.broker.metadata.store.tree import NoNodeError, Store

PRODUCER_IDS_PER_BLOCK: Final = 1000


async def allocate(store: Store, broker_id: int) -> layout.ProducerIdBlock:
    """The next block, for a broker."""
    try:
        found = await store.get(layout.PRODUCER_IDS)
    except NoNodeError:
        block = layout.ProducerIdBlock(0, PRODUCER_IDS_PER_BLOCK)
        data = layout.encode_producer_ids(broker_id, block)
        await store.create(layout.PRODUCER_IDS, data)
    else:
        first = layout.decode_producer_ids(found.data)
        block = layout.ProducerIdBlock(first, PRODUCER_IDS_PER_BLOCK)
        data = layout.encode_producer_ids(broker_id, block)
        await store.set(layout.PRODUCER_IDS, data, version=found.version)
    return block

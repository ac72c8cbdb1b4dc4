"""Opens the config store of a broker: a file in its data directory, or ZooKeeper.

Owns the choice and the names of the files. It must never know what a store contains. Invariant: the
controller does not know which store it has, and kazoo is loaded only for ZooKeeper. Kafka makes the
same choice between ``KafkaServer`` and ``KafkaRaftServer``.
"""

from __future__ import annotations

from pathlib import Path

from minibroker.broker.log.data_directory import SESSION_FILE, STORE_FILE
from minibroker.broker.log.errors import StorageFailed, ignore_failure
from minibroker.broker.metadata.store.sqlite import SqliteStore
from minibroker.broker.metadata.store.tree import Store, StoreError
from minibroker.broker.settings import ZOOKEEPER_CONNECT, Settings


def store_path(data_dir: Path) -> Path:
    """The file of the embedded config store."""
    return data_dir / STORE_FILE


async def open_store(
    settings: Settings, data_dir: Path, failed: StorageFailed = ignore_failure
) -> Store:
    """The store that the settings name; `StoreError` if it can't be used.

    ``failed`` is called when a file of the store cannot be read or written.
    """
    connect = settings[ZOOKEEPER_CONNECT]
    if connect is None:
        return SqliteStore(store_path(data_dir), failed)
    try:
        from minibroker.broker.metadata.store.zookeeper import ZooKeeperStore
        from minibroker.broker.metadata.store.zookeeper_client import access_from
    except ImportError as error:
        text = f"zookeeper.connect needs kazoo ({error}): pip install minibroker[zookeeper]"
        raise StoreError(str(connect), text) from None
    access = access_from(settings)
    assert access is not None
    return await ZooKeeperStore.open(access, data_dir / SESSION_FILE)

"""Topics rebuilt from logs, and the starts that are refused without them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest

from minibroker.broker.log.data_directory import LoggedTopic
from minibroker.broker.metadata import layout
from minibroker.broker.metadata.bootstrap import ControllerStartError, FoundLogs
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import OFFSETS_TOPIC, Image
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import Store
from minibroker.broker.settings import Settings

NOW_MS = 1_700_000_000_000
SETTINGS = Settings.from_sources(pairs=["offsets.topic.num.partitions=4"])
CLUSTER_ID = "abcdefghijklmnopqrstuv"
TOPICS = {
    "orders": LoggedTopic(b"\x01" * 16, (0, 3)),
    OFFSETS_TOPIC: LoggedTopic(b"\x02" * 16, (1,)),
}


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = SqliteStore(MEMORY)
    yield made
    await made.close()


async def start(store: Store, found_logs: FoundLogs, settings: Settings = SETTINGS) -> Image:
    controller = await ClusterController.start(
        store,
        settings,
        endpoints={"PLAINTEXT": ("127.0.0.1", 9092)},
        random=Random(1),
        wall_ms=NOW_MS,
        found_logs=found_logs,
    )
    return controller.image


async def test_empty_store_with_logs_is_rejected_with_recovery_hint(store: Store) -> None:
    text = r"the data directory has 3 partitions of 2 topics.*--recover-topics-from-logs"
    with pytest.raises(ControllerStartError, match=text):
        await start(store, FoundLogs(CLUSTER_ID, TOPICS))


async def test_rejected_start_succeeds_with_topic_recovery(store: Store) -> None:
    with pytest.raises(ControllerStartError):
        await start(store, FoundLogs(CLUSTER_ID, TOPICS))
    image = await start(store, FoundLogs(CLUSTER_ID, TOPICS, rebuild_topics=True))
    assert image.cluster_id == CLUSTER_ID


async def test_interrupted_recovery_leaves_a_store_that_counts_as_new(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    async def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as context:
        context.setattr("minibroker.broker.metadata.bootstrap.store_cluster_id", die)
        with pytest.raises(Killed):
            await start(store, FoundLogs(CLUSTER_ID, TOPICS, rebuild_topics=True))
    with pytest.raises(ControllerStartError, match="--recover-topics-from-logs"):
        await start(store, FoundLogs(CLUSTER_ID, TOPICS))
    image = await start(store, FoundLogs(CLUSTER_ID, TOPICS, rebuild_topics=True))
    assert (image.cluster_id, sorted(image.topics)) == (CLUSTER_ID, sorted(TOPICS))


async def test_recovery_into_other_cluster_is_rejected(store: Store) -> None:
    await start(store, FoundLogs("cluster-of-the-store"))
    with pytest.raises(ControllerStartError, match="belongs to cluster cluster-of-the-store"):
        await start(store, FoundLogs(CLUSTER_ID, TOPICS, rebuild_topics=True))
    assert "orders" not in await store.children(layout.TOPICS)


async def test_missing_partitions_of_a_rebuilt_topic_are_logged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    logged = {
        "orders": LoggedTopic(b"\x01" * 16, (2, 14)),
        "users": LoggedTopic(b"\x02" * 16, (0,)),
    }
    await start(store, FoundLogs(CLUSTER_ID, logged, rebuild_topics=True))
    fields = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert fields == [
        {"topic": "orders", "partitions": 15, "empty": "0, 1, 3, 4, 5, 6, 7, 8, 9, 10 and 3 more"},
        {"topic": "users", "partitions": 1, "empty": "none"},
    ]


async def test_directory_with_an_impossible_partition_number_is_left_out(store: Store) -> None:
    logged = {"orders": LoggedTopic(b"\x01" * 16, (0, 2**31 - 1))}
    image = await start(store, FoundLogs(CLUSTER_ID, logged, rebuild_topics=True))
    assert "orders" not in image.topics


async def test_rebuilt_topics_have_their_ids_and_all_partitions(store: Store) -> None:
    image = await start(store, FoundLogs(CLUSTER_ID, TOPICS, rebuild_topics=True))
    found = {name: (topic.topic_id, len(topic.partitions)) for name, topic in image.topics.items()}
    assert found == {"orders": (b"\x01" * 16, 4), OFFSETS_TOPIC: (b"\x02" * 16, 4)}
    assert image.topics[OFFSETS_TOPIC].internal
    assert image.topic_overrides(OFFSETS_TOPIC)["cleanup.policy"] == "compact"


async def test_rebuilt_topics_are_in_the_store(store: Store) -> None:
    before = await start(store, FoundLogs(CLUSTER_ID, TOPICS, rebuild_topics=True))
    await store.delete(layout.CONTROLLER)
    await store.delete(layout.broker_path(1))
    after = await start(store, FoundLogs(CLUSTER_ID, TOPICS))
    assert after.topics == before.topics


async def test_producer_ids_of_a_rebuilt_store_are_new(store: Store) -> None:
    await start(store, FoundLogs(CLUSTER_ID, TOPICS, rebuild_topics=True))
    found = await store.get(layout.PRODUCER_IDS)
    assert layout.decode_producer_ids(found.data) > NOW_MS


async def test_recovery_with_an_intact_store_changes_no_topic(store: Store) -> None:
    before = await start(store, FoundLogs(CLUSTER_ID, TOPICS, rebuild_topics=True))
    await store.delete(layout.CONTROLLER)
    await store.delete(layout.broker_path(1))
    other = {"orders": LoggedTopic(b"\x09" * 16, (0, 1, 2, 3, 4, 5))}
    after = await start(store, FoundLogs(CLUSTER_ID, other, rebuild_topics=True))
    assert after.topics == before.topics


async def test_directory_with_an_impossible_topic_name_is_left_out(store: Store) -> None:
    logged = {"a b": LoggedTopic(b"\x01" * 16, (0,)), **TOPICS}
    image = await start(store, FoundLogs(CLUSTER_ID, logged, rebuild_topics=True))
    assert sorted(image.topics) == [OFFSETS_TOPIC, "orders"]


async def test_new_store_takes_the_cluster_id_of_the_directory(store: Store) -> None:
    assert (await start(store, FoundLogs(CLUSTER_ID))).cluster_id == CLUSTER_ID


async def test_log_dir_of_other_cluster_is_rejected_with_both_ids(store: Store) -> None:
    await start(store, FoundLogs("cluster-of-the-store"))
    text = "store belongs to cluster cluster-of-the-store, the data directory to cluster abc"
    with pytest.raises(ControllerStartError, match=text):
        await start(store, FoundLogs(CLUSTER_ID))


async def test_set_cluster_id_must_be_that_of_the_directory(store: Store) -> None:
    settings = Settings.from_sources(pairs=["cluster.id=other"])
    text = f"directory belongs to cluster {CLUSTER_ID}, and cluster.id=other is set"
    with pytest.raises(ControllerStartError, match=text):
        await start(store, FoundLogs(CLUSTER_ID), settings)

"""Topics are created for all processes, shown with their logs, and deleted."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.metadata.image import Update
from minibroker.broker.metadata.store.sqlite import SqliteStore
from minibroker.broker.metadata.store.tree import UnavailableError
from minibroker.broker.process.messages import (
    LogsRequest,
    LogView,
)
from minibroker.lab.control.cluster import reset
from minibroker.lab.control.topics import (
    TopicCreation,
    create_topic,
    delete_topic,
    get_topic,
    list_topics,
)
from minibroker.lab.errors import ApiError, Conflict, NotFound, Unavailable
from minibroker.lab.schema import parse
from tests.lab.control.running_broker import At


async def test_topic_is_created_for_all_and_shown_with_its_logs(at: At) -> None:
    made = await create_topic(at.broker, TopicCreation("t", 2, {"retention.ms": "5"}))
    assert made.configs == {"retention.ms": "5"}
    result = [name for name, request in at.roles.asked if isinstance(request, Update)]
    assert sorted(result) == ["acceptor", "processor-0", "worker-0", "worker-1"]
    owners = [partition.owner for partition in made.partitions]
    assert sorted(owners) == ["worker-0", "worker-1"]
    for index, owner in enumerate(owners):
        at.roles.answers[owner, LogsRequest] = {index: LogView(index, 7, 8, 100)}
    topic = await get_topic(at.broker, "t")
    assert [(each.log_start_offset, each.log_end_offset) for each in topic.partitions] == [
        (0, 8),
        (1, 8),
    ]
    assert [topic.name for topic in (await list_topics(at.broker)).topics] == [
        "__consumer_offsets",
        "t",
    ]


async def test_worker_that_is_down_is_left_out(at: At) -> None:
    await create_topic(at.broker, TopicCreation("t", 2, {}))
    at.roles.conversations["worker-0"].close()
    await wait_all_tasks_blocked()
    topic = await get_topic(at.broker, "t")
    down = next(each for each in topic.partitions if each.owner == "worker-0")
    assert (down.log_end_offset, down.size_bytes) == (-1, 0)


async def test_invalid_topic_operation_is_rejected_with_error_name(at: At) -> None:
    new = TopicCreation("t", None, {})
    assert len((await create_topic(at.broker, new)).partitions) == 1
    with pytest.raises(Conflict) as conflict:
        await create_topic(at.broker, new)
    assert conflict.value.code == "TOPIC_ALREADY_EXISTS"
    with pytest.raises(ApiError) as refused:
        await create_topic(at.broker, TopicCreation("a/b", 1, {}))
    assert refused.value.code == "INVALID_TOPIC_EXCEPTION"
    for missing in (get_topic(at.broker, "no"), delete_topic(at.broker, "no")):
        with pytest.raises(NotFound) as unknown:
            await missing
        assert unknown.value.code == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_topic_that_the_store_cannot_write_is_unavailable(
    at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(SqliteStore, "_transaction", full)
    with pytest.raises(Unavailable) as refused:
        await create_topic(at.broker, TopicCreation("t", 1, {}))
    assert (refused.value.code, refused.value.status) == ("KAFKA_STORAGE_ERROR", 503)
    assert "Free space" in refused.value.hint


async def test_deleted_topic_is_not_listed(at: At) -> None:
    await create_topic(at.broker, TopicCreation("t", 1, {}))
    await delete_topic(at.broker, "t")
    assert "t" not in {topic.name for topic in (await list_topics(at.broker)).topics}


async def test_unavailable_store_fails_topic_changes(at: At) -> None:
    store = at.scope.cluster._store

    async def away(_operations: object) -> list[Any]:
        raise UnavailableError("/brokers/topics/t", "no ZooKeeper answered")

    await create_topic(at.broker, TopicCreation("t", 1, {}))
    store.multi = away  # type: ignore[assignment, method-assign]
    for change in (
        create_topic(at.broker, TopicCreation("u", 1, {})),
        delete_topic(at.broker, "t"),
        reset(at.broker),
    ):
        with pytest.raises(Unavailable, match="no ZooKeeper answered"):
            await change


def test_topic_creation_requires_only_name() -> None:
    assert parse(TopicCreation, {"name": "t"}) == TopicCreation("t", partitions=None, configs={})

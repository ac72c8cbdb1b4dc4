"""Health, cluster, metrics and reset of a broker with roles that a test plays."""

from __future__ import annotations

from functools import partial

import trio
from trio.testing import MockClock

from minibroker.broker.metrics.conditions import Condition, ConditionKind
from minibroker.broker.process.messages import (
    ConditionsRequest,
)
from minibroker.lab.control.cluster import (
    HealthCondition,
    ProcessHealth,
    ResetResult,
    broker_health,
    get_cluster,
    metric_snapshots,
    reset,
)
from minibroker.lab.control.topics import TopicCreation, create_topic, list_topics
from tests.lab.control.running_broker import STATUSES, At


async def test_health_is_that_of_the_processes(at: At, autojump_clock: MockClock) -> None:
    await trio.sleep(2)
    health = await broker_health(at.broker)
    assert not health.ready
    assert health.processes == (
        ProcessHealth("controller", 40, "running", 0),
        ProcessHealth("worker-0", None, "restarting", 1),
    )
    recorder = STATUSES[1]._replace(name="recorder")
    for statuses in (STATUSES[:1], (STATUSES[0], recorder)):  # not needed by clients
        at.env.statuses = partial(tuple, statuses)
        assert (await broker_health(at.broker)).ready


async def test_health_with_a_condition_is_degraded_and_names_it(
    at: At, autojump_clock: MockClock
) -> None:
    at.env.statuses = partial(tuple, STATUSES[:1])
    assert (await broker_health(at.broker)).status == "ready"
    full = Condition(ConditionKind.STORAGE_FAILED, "/data", "0 bytes are free", 7)
    at.roles.answers["worker-0", ConditionsRequest] = (full,)
    health = await broker_health(at.broker)
    assert (health.ready, health.status) == (True, "degraded")
    assert health.conditions == (
        HealthCondition("worker-0", "storage_failed", "/data", "0 bytes are free", 7),
    )


async def test_health_names_a_process_that_does_not_answer(at: At) -> None:
    async def never() -> None:
        await trio.sleep_forever()

    at.roles.answers["worker-1", ConditionsRequest] = never()
    (condition,) = (await broker_health(at.broker)).conditions
    assert (condition.process, condition.kind) == ("worker-1", "not_responding")


async def test_cluster_is_that_of_the_image(at: At) -> None:
    await create_topic(at.broker, TopicCreation("t", 3, {}))
    cluster = await get_cluster(at.broker)
    assert (cluster.controller_id, cluster.change) == (3, 1)
    assert cluster.cluster_id == at.scope.image.cluster_id
    (broker,) = cluster.brokers
    assert [endpoint.port for endpoint in broker.endpoints] == [9092, 9093]
    assert (cluster.topics, cluster.partitions) == (2, 53)


async def test_reset_deletes_user_topics(at: At) -> None:
    await create_topic(at.broker, TopicCreation("t", 1, {}))
    done = await reset(at.broker)
    assert done == ResetResult(1, 0)
    names = [topic.name for topic in (await list_topics(at.broker)).topics]
    assert names == ["__consumer_offsets"]


async def test_metrics_cover_every_running_process(at: At) -> None:
    snapshots = await metric_snapshots(at.broker)
    names = [snapshot.process for snapshot in snapshots]
    assert names == ["controller", "acceptor", "processor-0", "worker-0", "worker-1"]

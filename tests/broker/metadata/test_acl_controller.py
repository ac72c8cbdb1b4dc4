"""The controller's access rules: kept, part of the image, and there again in its next life."""

from __future__ import annotations

from random import Random

import pytest

from minibroker.broker.metadata.acls import Binding, Filter
from minibroker.broker.metadata.bootstrap import ControllerStartError
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import apply_update
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import Create, UnavailableError, UnwritableError
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker.broker.security.acl import Pattern, Resource
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode

READ = Binding(2, "cats", 3, "User:alice", "*", 3, 3)
ON = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"


async def started(store: SqliteStore, *pairs: str) -> ClusterController:
    return await ClusterController.start(
        store,
        Settings.from_sources(pairs=pairs),
        endpoints={"PLAINTEXT": ("h", 1)},
        random=Random(1),
        wall_ms=0,
    )


async def restarted(store: SqliteStore, *pairs: str) -> ClusterController:
    for path in ("/controller", "/brokers/ids/1"):
        await store.delete(path)
    return await started(store, *pairs)


async def test_acls_survive_a_restart() -> None:
    store = SqliteStore(MEMORY)
    cluster = await started(store, ON)
    before = cluster.image
    rejections, updates = await cluster.create_acls([READ, READ._replace(operation=0)])
    assert rejections[0] is None
    assert isinstance(rejections[1], ChangeRejected)
    for update in updates:
        before = apply_update(before, update)
    assert before.acls == cluster.image.acls
    again = await restarted(store, ON)
    assert again.image.acls == cluster.image.acls
    answers, _ = await again.delete_acls([Filter(2, "cats", 3, None, None, 1, 1)])
    assert isinstance(answers[0], list)
    assert len(answers[0]) == 1
    assert not again.image.acls
    assert (await restarted(store, ON)).image.acls == {}
    assert (await again.create_acls([]))[1] == []
    await store.close()


async def test_foreign_changes_in_store_are_applied_to_image() -> None:
    store = SqliteStore(MEMORY)
    cluster = await started(store, ON)
    await cluster.create_acls([READ])
    rules = (await store.get("/kafka-acl/Topic/cats")).data
    await store.multi([Create("/kafka-acl/Topic/dogs", rules)])
    await store.delete("/kafka-acl/Topic/cats")
    dogs, cats = Pattern(Resource.TOPIC, "dogs"), Pattern(Resource.TOPIC, "cats")
    assert await cluster.apply_acls(dogs)
    assert set(cluster.image.acls) == {cats, dogs}
    assert await cluster.apply_all_acls()
    assert set(cluster.image.acls) == {dogs}
    assert await cluster.apply_all_acls() == []
    await store.close()


async def test_unreadable_acls_prevent_start_with_authorizer() -> None:
    store = SqliteStore(MEMORY)
    await started(store)
    await store.ensure("/kafka-acl/Topic")
    await store.multi([Create("/kafka-acl/Topic/cats", b"nonsense")])
    await restarted(store)
    with pytest.raises(ControllerStartError, match="/kafka-acl/Topic/cats"):
        await restarted(store, ON)
    await store.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnwritableError, ErrorCode.KAFKA_STORAGE_ERROR),
        (UnavailableError, ErrorCode.REQUEST_TIMED_OUT),
    ],
)
async def test_failed_acl_writes_are_rejected_and_keep_image(
    monkeypatch: pytest.MonkeyPatch, error: type[UnavailableError], code: ErrorCode
) -> None:
    store = SqliteStore(MEMORY)
    cluster = await started(store, ON)
    await cluster.create_acls([READ])
    before = cluster.image

    async def fail(_: object) -> None:
        raise error("store", "cannot be written")

    monkeypatch.setattr(store, "multi", fail)
    bad = READ._replace(operation=0)
    rejections, updates = await cluster.create_acls([READ._replace(name="dogs"), bad])
    assert [refusal and refusal.code for refusal in rejections] == [
        code,
        ErrorCode.INVALID_REQUEST,
    ]
    assert updates == []
    everything = Filter(1, None, 1, None, None, 1, 1)
    nothing = everything._replace(name="dogs", resource=2, pattern_type=3)
    answers, updates = await cluster.delete_acls([everything, nothing])
    assert isinstance(answers[0], ChangeRejected)
    assert answers[0].code is code
    assert answers[1:] == [[]]
    assert updates == []
    assert cluster.image == before

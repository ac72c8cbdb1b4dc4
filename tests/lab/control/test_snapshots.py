"""Snapshots as the controller keeps them, with roles played by the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from minibroker.broker.log.replica_manager import SavedLogs
from minibroker.broker.metadata.store.tree import StoreError
from minibroker.broker.process.messages import PauseRequests, RestoreLogs, ResumeRequests, SaveLogs
from minibroker.lab.control import snapshots as tested
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.snapshots import (
    SNAPSHOT_NAME,
    SNAPSHOTS,
    SnapshotCreation,
    get_snapshot,
    list_snapshots,
    remove_snapshot,
    restore_snapshot,
    take_snapshot,
)
from minibroker.lab.errors import ApiError, Conflict, NotFound, Unavailable
from minibroker.lab.schema import InvalidJson, parse
from tests.broker.process.conftest import MakeEnvironment

ROLES = ["processor-0", "processor-1"], ["worker-0", "worker-1"]


class Cluster:
    """Metadata whose copies are noted."""

    error: StoreError | None = None

    def __init__(self) -> None:
        self.files: set[str] = set()

    @asynccontextmanager
    async def saved(self, file: str) -> AsyncIterator[None]:
        if self.error is not None:
            raise self.error
        self.files.add(file)
        yield

    async def restore(self, file: str) -> list[str]:
        assert file.replace("/s/", "/s.incomplete/") in self.files
        return ["update"]


class Roles:
    """Processes that answer, apart from those that are down; also the scope of the controller."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.asked: list[tuple[list[str], object]] = []
        self.down: set[str] = set()
        self.saved: object = SavedLogs(2, 500)
        self.restored = ""

    async def publish(self, updates: list[str]) -> None:
        self.asked.append(([], updates[0]))

    async def request_all(self, request: object, names: list[str]) -> dict[str, object]:
        self.asked.append((list(names), request))
        answers: dict[type, object] = {SaveLogs: self.saved, RestoreLogs: self.restored}
        return {name: answers.get(type(request)) for name in names if name not in self.down}


@pytest.fixture
def roles() -> Roles:
    return Roles()


@pytest.fixture
async def broker(make_env: MakeEnvironment, roles: Roles) -> ControlledBroker:
    env = make_env("controller", processors=2, workers=2)
    return ControlledBroker(env, cast("Any", roles), cast("Any", roles), print)


async def test_snapshot_is_taken_while_no_request_is_executed(
    broker: ControlledBroker, roles: Roles, tmp_path: Path
) -> None:
    view = await take_snapshot(broker, SnapshotCreation("s"))
    assert (view.name, view.partitions, view.size_bytes) == ("s", 4, 1000)
    processors, workers = ROLES
    (_, save) = roles.asked[2]
    assert isinstance(save, SaveLogs)
    assert save.snapshot == "s"
    assert roles.asked == [
        (processors, PauseRequests()),
        (workers, PauseRequests()),
        (workers, save),
        ([*processors, *workers], ResumeRequests()),
    ]
    assert await get_snapshot(broker, "s") == view
    assert (await list_snapshots(broker)).snapshots == (view,)


async def test_restore_publishes_metadata_before_logs_are_restored(
    broker: ControlledBroker, roles: Roles, tmp_path: Path
) -> None:
    await take_snapshot(broker, SnapshotCreation("s"))
    roles.asked.clear()
    await restore_snapshot(broker, "s")
    pause = PauseRequests(disconnect=True)
    processors, workers = ROLES
    directory = str(tmp_path / SNAPSHOTS / "s")
    assert roles.asked == [
        (processors, pause),
        (workers, pause),
        ([], "update"),
        (workers, RestoreLogs("s", directory)),
        ([*processors, *workers], ResumeRequests()),
    ]


async def test_names_are_numbers_by_default(broker: ControlledBroker) -> None:
    for name in (None, "7", None, "x"):
        await take_snapshot(broker, SnapshotCreation(name))
    found = {view.name for view in (await list_snapshots(broker)).snapshots}
    assert found == {"1", "7", "8", "x"}


async def test_invalid_and_repeated_names_are_rejected(broker: ControlledBroker) -> None:
    with pytest.raises(InvalidJson, match="letters"):
        await take_snapshot(broker, SnapshotCreation("../x"))
    await take_snapshot(broker, SnapshotCreation("x"))
    with pytest.raises(Conflict, match="there is a snapshot 'x'"):
        await take_snapshot(broker, SnapshotCreation("x"))


async def test_unknown_snapshot_is_not_found(broker: ControlledBroker) -> None:
    for call in (get_snapshot, restore_snapshot, remove_snapshot):
        for name in ("x", "..", ""):
            with pytest.raises(NotFound):
                await call(broker, name)


async def test_removed_snapshot_is_gone(broker: ControlledBroker, tmp_path: Path) -> None:
    await take_snapshot(broker, SnapshotCreation("s"))
    await remove_snapshot(broker, "s")
    assert (await list_snapshots(broker)).snapshots == ()
    assert list((tmp_path / SNAPSHOTS).iterdir()) == []
    await take_snapshot(broker, SnapshotCreation("s"))


async def test_number_and_bytes_are_bounded(
    broker: ControlledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tested.SNAPSHOTS_MAX == 100
    monkeypatch.setattr(tested, "SNAPSHOTS_MAX", 2)
    monkeypatch.setattr(tested, "SNAPSHOT_BYTES_MAX", 1500)
    await take_snapshot(broker, SnapshotCreation("a"))
    with pytest.raises(Conflict, match="1500 bytes"):
        await take_snapshot(broker, SnapshotCreation("b"))
    monkeypatch.setattr(tested, "SNAPSHOT_BYTES_MAX", 2000)
    await take_snapshot(broker, SnapshotCreation("b"))
    with pytest.raises(Conflict, match="2 snapshots"):
        await take_snapshot(broker, SnapshotCreation("c"))


async def test_failure_leaves_no_snapshot_and_resumes_requests(
    broker: ControlledBroker, roles: Roles, tmp_path: Path
) -> None:
    async def fails(error: type[ApiError], match: str) -> None:
        with pytest.raises(error, match=match):
            await take_snapshot(broker, SnapshotCreation("s"))
        assert isinstance(roles.asked[-1][1], ResumeRequests)
        assert (await list_snapshots(broker)).snapshots == ()

    roles.down = {"worker-1"}
    await fails(Unavailable, "worker-1 is being restarted")
    roles.down = set()
    roles.saved = "no space"
    await fails(Unavailable, "no space")
    roles.cluster.error = StoreError("/x", "is shared")
    await fails(Conflict, "is shared")


async def test_failed_restore_can_be_repeated(broker: ControlledBroker, roles: Roles) -> None:
    await take_snapshot(broker, SnapshotCreation("s"))
    roles.restored = "no space"
    with pytest.raises(Unavailable, match="no space") as caught:
        await restore_snapshot(broker, "s")
    assert caught.value.hint == "Restore it again."
    roles.restored = ""
    await restore_snapshot(broker, "s")


def test_name_is_optional_and_bounded() -> None:
    assert parse(SnapshotCreation, {}) == SnapshotCreation(None)
    assert parse(SnapshotCreation, {"name": "a-1"}) == SnapshotCreation("a-1")
    with pytest.raises(InvalidJson):
        parse(SnapshotCreation, {"name": "a" * 65})


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a.b", "a b", "a\n", "ä"])
def test_name_cannot_be_a_path(name: str) -> None:
    assert SNAPSHOT_NAME.fullmatch(name) is None


async def test_snapshot_is_taken_listed_restored_and_removed(client: httpx.AsyncClient) -> None:
    taken = await client.post("/v1/snapshots", json={"name": "s"})
    assert taken.status_code == 201
    assert taken.json() == {"name": "s", "taken_ms": 5, "partitions": 2, "size_bytes": 10}
    assert (await client.get("/v1/snapshots")).json() == {"snapshots": [taken.json()]}
    assert (await client.get("/v1/snapshots/s")).json() == taken.json()
    assert (await client.post("/v1/snapshots/s/restore")).json() == taken.json()
    assert (await client.delete("/v1/snapshots/s")).status_code == 204
    for missing in (
        await client.get("/v1/snapshots/s"),
        await client.post("/v1/snapshots/s/restore"),
        await client.delete("/v1/snapshots/s"),
    ):
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "NO_SUCH_SNAPSHOT"


async def test_unknown_field_is_rejected(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/snapshots", json={"nam": "s"})
    assert answer.status_code == 400

"""Snapshots as the controller keeps them, with roles played by the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from minibroker.broker.controller import snapshots as tested
from minibroker.broker.controller.snapshots import SNAPSHOTS, Snapshots
from minibroker.broker.log.manager import SavedLogs
from minibroker.broker.metadata.store.tree import StoreError
from minibroker.broker.process.messages import PauseRequests, RestoreLogs, ResumeRequests, SaveLogs
from minibroker.lab.control import snapshot_shapes
from minibroker.lab.control.backend import BackendError, Conflict, NotFound, Unavailable
from minibroker.lab.control.schema import InvalidJson
from minibroker.lab.control.snapshot_shapes import SnapshotCreation
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
def snapshots(make_env: MakeEnvironment, roles: Roles) -> Snapshots:
    env = make_env("controller", processors=2, workers=2)
    return Snapshots(env, cast("Any", roles), cast("Any", roles))


async def test_snapshot_is_taken_while_no_request_is_executed(
    snapshots: Snapshots, roles: Roles, tmp_path: Path
) -> None:
    view = await snapshots.take_snapshot(SnapshotCreation("s"))
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
    assert await snapshots.snapshot("s") == view
    assert (await snapshots.snapshots()).snapshots == (view,)


async def test_restore_publishes_metadata_before_logs_are_restored(
    snapshots: Snapshots, roles: Roles, tmp_path: Path
) -> None:
    await snapshots.take_snapshot(SnapshotCreation("s"))
    roles.asked.clear()
    await snapshots.restore_snapshot("s")
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


async def test_names_are_numbers_by_default(snapshots: Snapshots) -> None:
    for name in (None, "7", None, "x"):
        await snapshots.take_snapshot(SnapshotCreation(name))
    found = {view.name for view in (await snapshots.snapshots()).snapshots}
    assert found == {"1", "7", "8", "x"}


async def test_invalid_and_repeated_names_are_rejected(snapshots: Snapshots) -> None:
    with pytest.raises(InvalidJson, match="letters"):
        await snapshots.take_snapshot(SnapshotCreation("../x"))
    await snapshots.take_snapshot(SnapshotCreation("x"))
    with pytest.raises(Conflict, match="there is a snapshot 'x'"):
        await snapshots.take_snapshot(SnapshotCreation("x"))


async def test_unknown_snapshot_is_not_found(snapshots: Snapshots) -> None:
    for call in (snapshots.snapshot, snapshots.restore_snapshot, snapshots.remove_snapshot):
        for name in ("x", "..", ""):
            with pytest.raises(NotFound):
                await call(name)


async def test_removed_snapshot_is_gone(snapshots: Snapshots, tmp_path: Path) -> None:
    await snapshots.take_snapshot(SnapshotCreation("s"))
    await snapshots.remove_snapshot("s")
    assert (await snapshots.snapshots()).snapshots == ()
    assert list((tmp_path / SNAPSHOTS).iterdir()) == []
    await snapshots.take_snapshot(SnapshotCreation("s"))


async def test_number_and_bytes_are_bounded(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tested, "SNAPSHOTS_MAX", 2)
    monkeypatch.setattr(tested, "SNAPSHOT_BYTES_MAX", 1500)
    assert snapshot_shapes.SNAPSHOTS_MAX == 100
    await snapshots.take_snapshot(SnapshotCreation("a"))
    with pytest.raises(Conflict, match="1500 bytes"):
        await snapshots.take_snapshot(SnapshotCreation("b"))
    monkeypatch.setattr(tested, "SNAPSHOT_BYTES_MAX", 2000)
    await snapshots.take_snapshot(SnapshotCreation("b"))
    with pytest.raises(Conflict, match="2 snapshots"):
        await snapshots.take_snapshot(SnapshotCreation("c"))


async def test_failure_leaves_no_snapshot_and_resumes_requests(
    snapshots: Snapshots, roles: Roles, tmp_path: Path
) -> None:
    async def fails(error: type[BackendError], match: str) -> None:
        with pytest.raises(error, match=match):
            await snapshots.take_snapshot(SnapshotCreation("s"))
        assert isinstance(roles.asked[-1][1], ResumeRequests)
        assert (await snapshots.snapshots()).snapshots == ()

    roles.down = {"worker-1"}
    await fails(Unavailable, "worker-1 is being restarted")
    roles.down = set()
    roles.saved = "no space"
    await fails(Unavailable, "no space")
    roles.cluster.error = StoreError("/x", "is shared")
    await fails(Conflict, "is shared")


async def test_failed_restore_can_be_repeated(snapshots: Snapshots, roles: Roles) -> None:
    await snapshots.take_snapshot(SnapshotCreation("s"))
    roles.restored = "no space"
    with pytest.raises(Unavailable, match="no space") as caught:
        await snapshots.restore_snapshot("s")
    assert caught.value.hint == "Restore it again."
    roles.restored = ""
    await snapshots.restore_snapshot("s")

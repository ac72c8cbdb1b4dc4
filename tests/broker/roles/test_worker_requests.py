"""The controller gets views of what a worker owns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.broker.groups.offsets import CommittedOffset, OffsetTable
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.replica_manager import SavedLogs
from minibroker.broker.process.messages import (
    ApiPart,
    CommittedOffsetsRequest,
    CompactRequest,
    DeleteGroups,
    GroupsRequest,
    LogsRequest,
    LogView,
    PartitionLogsRequest,
    PauseRequests,
    RestoreLogs,
    ResumeRequests,
    SaveLogs,
    TailRequest,
)
from minibroker.broker.roles.worker_requests import ControllerRequests, WorkerSnapshots
from minibroker_protocol.errors import ErrorCode


def offset_table() -> OffsetTable:
    table = OffsetTable()
    for index, offset in enumerate((5, 6)):
        table.put("t", index, CommittedOffset(offset, -1, "", 0))
    return table


OFFSETS = {
    "a": offset_table(),
    "loading": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    "b": offset_table(),
}


class Worker:
    """A worker that owns the even partitions of one topic; partition 2 can't be opened."""

    image = SimpleNamespace(topics={"t": SimpleNamespace(partitions=range(5))})
    groups = SimpleNamespace(
        drop_groups=lambda prefix: f"dropped {prefix}",
        list_groups=lambda: ["g"],
        committed=lambda group_id: OFFSETS[group_id],
        describe=lambda group_id, full: (group_id, full),
    )
    cleaner = SimpleNamespace(compact=lambda topic: f"compacted {topic}")

    def snapshots(self) -> Any:
        return SimpleNamespace(handle=lambda request: request)

    def execute(self, part: ApiPart) -> str:
        return f"executed {part.part}"

    async def sleep_real(self, seconds: float) -> None:
        assert seconds == 0

    def owns(self, topic: str, partition: int) -> bool:
        return topic == "t" and partition % 2 == 0

    def partition(self, topic: str, index: int) -> Any:
        if index == 2:
            raise LogError(ErrorCode.KAFKA_STORAGE_ERROR, topic)
        log = SimpleNamespace(log_start_offset=1, log_end_offset=9, size=7)
        return None if index == 4 else SimpleNamespace(log=log, high_watermark=8)


@pytest.fixture
def requests() -> ControllerRequests:
    worker: Any = Worker()
    return ControllerRequests(worker, lambda *_: None)


def test_logs_that_are_owned_and_open_are_shown(requests: ControllerRequests) -> None:
    assert requests.handle(LogsRequest("t")) == {0: LogView(1, 8, 9, 7)}
    assert requests.handle(LogsRequest("unknown")) == {}


async def test_logs_of_owned_partitions_of_several_topics_are_shown(
    requests: ControllerRequests,
) -> None:
    asked = (("t", 0), ("t", 1), ("t", 2), ("t", 6), ("unknown", 0))
    found = await requests.handle(PartitionLogsRequest(asked))
    assert found == {("t", 0): LogView(1, 8, 9, 7)}


def test_committed_offsets_of_groups_are_shown_up_to_the_limit(
    requests: ControllerRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [SimpleNamespace(group_id=name, offsets=2) for name in ("a", "loading", "b")]
    monkeypatch.setattr(Worker.groups, "list_groups", lambda: groups)
    offsets = {("t", 0): 5, ("t", 1): 6}
    assert requests.handle(CommittedOffsetsRequest(6)) == {"a": offsets, "b": offsets}
    assert requests.handle(CommittedOffsetsRequest(5)) == {"a": offsets}


def test_part_of_an_api_is_executed(requests: ControllerRequests) -> None:
    assert requests.handle(ApiPart(2, "part")) == "executed part"


def test_groups_are_listed_and_described(requests: ControllerRequests) -> None:
    assert requests.handle(GroupsRequest()) == ["g"]
    assert requests.handle(GroupsRequest("g")) == ("g", True)


def test_topic_is_compacted(requests: ControllerRequests) -> None:
    assert requests.handle(CompactRequest("t")) == "compacted t"


def test_other_requests_are_rejected(requests: ControllerRequests) -> None:
    with pytest.raises(TypeError, match="a worker cannot handle TailRequest"):
        requests.handle(TailRequest("t", 0))


def test_snapshots_are_handled(requests: ControllerRequests) -> None:
    for request in (PauseRequests(), ResumeRequests(), SaveLogs("s", "/"), RestoreLogs("s", "/")):
        assert requests.handle(request) is request


def test_groups_are_dropped(requests: ControllerRequests) -> None:
    assert requests.handle(DeleteGroups("ns.")) == "dropped ns."


class Steps:
    """Records the steps of a worker; a step with an error raises it."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.errors: dict[str, Exception] = {}

    def part(self, *names: str, result: object = None) -> Any:
        return type("Part", (), {name: self._step(name, result) for name in names})()

    def _step(self, name: str, result: object) -> Any:
        def step(_: object, *arguments: object, **options: object) -> object:
            self.taken.append(name)
            if name in self.errors:
                raise self.errors[name]
            return result

        return step

    @asynccontextmanager
    async def without_cleaning(self) -> AsyncIterator[None]:
        self.taken.append("cleaner paused")
        yield
        self.taken.append("cleaner resumed")

    async def hold_markers(self) -> None:
        self.taken.append("hold")


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def snapshots(steps: Steps) -> WorkerSnapshots:
    transactions = steps.part("reset", "release_markers")
    transactions.hold_markers = steps.hold_markers
    return WorkerSnapshots(
        steps.part("save", "restore", "note_saved", result=SavedLogs(3, 4)),
        steps.part("forget_all"),
        steps.part("reset"),
        transactions,
        lambda *, keep_logs: steps.taken.append("reset shares" if keep_logs else "cleared"),
        without_cleaning=steps.without_cleaning,
        load=lambda: steps.taken.append("load"),
    )


async def test_logs_are_restored_while_nothing_is_cleaned(
    steps: Steps, snapshots: WorkerSnapshots
) -> None:
    assert await snapshots.handle(RestoreLogs("s", "/s")) == ""
    assert steps.taken == [
        "cleaner paused",
        *("reset", "reset", "reset shares", "restore", "forget_all", "load", "note_saved"),
        "cleaner resumed",
    ]


async def test_logs_are_loaded_after_a_failed_restore(
    steps: Steps, snapshots: WorkerSnapshots
) -> None:
    steps.errors["restore"] = OSError("no space")
    assert await snapshots.handle(RestoreLogs("s", "/s")) == "no space"
    assert steps.taken[-3:] == ["forget_all", "load", "cleaner resumed"]


@pytest.mark.parametrize(
    "error", [OSError("broken"), LogError(ErrorCode.KAFKA_STORAGE_ERROR, "broken")]
)
async def test_failed_save_is_explained(
    steps: Steps, snapshots: WorkerSnapshots, error: Exception
) -> None:
    assert await snapshots.handle(SaveLogs("s", "/s")) == SavedLogs(3, 4)
    steps.errors["save"] = error
    assert await snapshots.handle(SaveLogs("s", "/s")) == "broken"


async def test_pause_holds_markers(steps: Steps, snapshots: WorkerSnapshots) -> None:
    await snapshots.handle(PauseRequests())
    await snapshots.handle(ResumeRequests())
    assert steps.taken == ["hold", "release_markers"]


async def test_unknown_request_is_an_error(snapshots: WorkerSnapshots) -> None:
    with pytest.raises(TypeError, match="str"):
        await snapshots.handle("?")

"""The controller gets views of what a worker owns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.broker.groups.offsets import CommittedOffset, OffsetTable
from minibroker.broker.log.errors import LogError
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
from minibroker.broker.roles.worker_requests import ControllerRequests
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

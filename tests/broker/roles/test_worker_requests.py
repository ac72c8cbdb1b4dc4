"""The controller gets views of what a worker owns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.broker.log.errors import LogError
from minibroker.broker.process.messages import (
    CompactRequest,
    DeleteGroups,
    GroupsRequest,
    LogsRequest,
    LogView,
    PauseRequests,
    RestoreLogs,
    ResumeRequests,
    SaveLogs,
    TailRequest,
)
from minibroker.broker.roles.worker_requests import ControllerRequests
from minibroker_protocol.errors import ErrorCode


class Worker:
    """A worker that owns the even partitions of one topic; partition 2 can't be opened."""

    image = SimpleNamespace(topics={"t": SimpleNamespace(partitions=range(5))})
    groups = SimpleNamespace(
        drop_groups=lambda prefix: f"dropped {prefix}",
        list_groups=lambda: ["g"],
        describe=lambda group_id, full: (group_id, full),
    )
    cleaner = SimpleNamespace(compact=lambda topic: f"compacted {topic}")

    def snapshots(self) -> Any:
        return SimpleNamespace(handle=lambda request: request)

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

"""The single step of Fetch, on its own; its bytes are compared in tests/broker/network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.apis.base import SingleScope
from minibroker.broker.apis.single_fetch import COPIED_BYTES_MAX, execute_single
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import FileSlice
from minibroker_protocol.errors import ErrorCode

TOPIC_ID = b"i" * 16


class Scope:
    """A worker with one partition ``t-0``, whose log has ``size`` bytes from offset 0 on."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.error: ErrorCode | None = None
        self.quota = 1 << 30
        self.readable = True
        self.image = SimpleNamespace(
            topic_names={TOPIC_ID: "t"},
            partition=lambda topic, index: (topic, index) == ("t", 0) or None,
        )
        self.worker = self
        self.settings = cast("Any", _AnySetting())
        self.log = SimpleNamespace(log_start_offset=0)
        self.high_watermark = self.last_stable_offset = 5

    def partition(self, _topic: str, _index: int) -> Any:
        return self

    def check_leader(self, _epoch: int) -> None:
        if self.error is not None:
            raise LogError(self.error, "not here")

    def _slice(self) -> FileSlice | None:
        return FileSlice("file", 0, self.size) if self.size else None

    def read_committed(self, *_: Any, **__: Any) -> tuple[FileSlice | None, list[Any]]:
        return self._slice(), []

    def fetch_bytes_max(self) -> int:
        return self.quota

    def now(self) -> float:
        return 7.0

    def read(self, *of: Any, **_: Any) -> Any:
        if len(of) == 1:  # As the scope of the request: the bytes of a slice.
            return bytes(of[0].length) if self.readable else None
        return self._slice()


class _AnySetting:
    def __getitem__(self, _setting: object) -> int:
        return 1 << 30


def request(**changes: Any) -> tuple[Any, ...]:
    values = {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topic": "t",
        "topic_id": bytes(16),
        "partition": 0,
        "leader_epoch": -1,
        "offset": 0,
        "last_epoch": -1,
        "log_start": -1,
        "partition_bytes": 1 << 20,
        "rack_id": "",
    }
    return tuple({**values, **changes}.values())


def execute(scope: Scope, version: int = 11, **changes: Any) -> Any:
    return execute_single(cast("SingleScope", scope), version, request(**changes))


@pytest.mark.parametrize("committed", [0, 1])
def test_records_are_in_the_response(committed: int) -> None:
    leaves = execute(Scope(10), isolation_level=committed)
    aborted = () if committed else None
    assert leaves == (0, 0, 0, "t", bytes(16), 0, 0, 5, 5, 0, aborted, -1, bytes(10))


def test_topic_id_is_used_from_version_13_on() -> None:
    assert execute(Scope(10), 13, topic="", topic_id=TOPIC_ID)[4] == TOPIC_ID
    assert execute(Scope(10), 13, topic_id=b"?" * 16) is None


@pytest.mark.parametrize(
    "changes",
    [{"replica_id": 1}, {"session_epoch": 0}, {"topic": "other"}, {"partition": 1}],
    ids=["replica", "session", "topic", "partition"],
)
def test_other_fetches_are_left_to_the_three_steps(changes: dict[str, Any]) -> None:
    assert execute(Scope(10), **changes) is None


def test_errors_and_records_that_cannot_be_copied_are_left_to_the_three_steps() -> None:
    failing, unreadable = Scope(10), Scope(10)
    failing.error, unreadable.readable = ErrorCode.NOT_LEADER_OR_FOLLOWER, False
    assert execute(failing) is execute(unreadable) is None
    assert execute(Scope(COPIED_BYTES_MAX + 1)) is None


def test_quota_limits_the_bytes_that_are_waited_for() -> None:
    scope = Scope(10)
    scope.quota = 10
    assert isinstance(execute(scope, min_bytes=1000, max_wait_ms=1000), tuple)


def test_fetch_waits_until_there_is_enough() -> None:
    scope = Scope()
    delayed = execute(scope, max_wait_ms=500)
    assert delayed is not None
    assert not isinstance(delayed, tuple)
    assert (list(delayed.partitions), delayed.deadline) == ([("t", 0)], 7.5)
    assert delayed.attempt(is_over=False) is delayed
    scope.size = 10
    found = delayed.attempt(is_over=False)
    assert isinstance(found, tuple)
    assert found[-1] == bytes(10)


def test_fetch_is_answered_without_records_when_its_time_is_over() -> None:
    found = execute(Scope(), max_wait_ms=500).attempt(is_over=True)
    assert found[-1] == b""


def test_fetch_that_fails_while_it_waits_is_left_to_the_three_steps() -> None:
    scope = Scope()
    delayed = execute(scope, max_wait_ms=500)
    scope.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delayed.attempt(is_over=False) is None

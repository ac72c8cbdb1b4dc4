"""Each group API answers NOT_COORDINATOR once: what five client libraries send next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pytest

from minibroker.testing import MiniBroker
from minibroker.testing.faults import FaultHandle
from minibroker.testing.journal import Entry, RecordedJournal
from system_tests.harness.waiting import PATIENCE_S, TimedOut
from system_tests.histories.conftest import NAMES, command_of
from system_tests.laboratory.processes import ClientProcess

pytestmark = pytest.mark.minibroker

JOINING: Final = ("JoinGroup", "SyncGroup", "OffsetFetch")
"""The APIs that a member needs before its first Fetch."""
REPEATED: Final = ("OffsetCommit", "Heartbeat")
"""Those that a member sends again and again."""
APIS: Final = (*JOINING, *REPEATED, "LeaveGroup")

RECOVERY: Final = {
    "JoinGroup": "FindCoordinator JoinGroup",
    "SyncGroup": "FindCoordinator JoinGroup SyncGroup",
    "OffsetFetch": "FindCoordinator OffsetFetch",
    "OffsetCommit": "FindCoordinator OffsetCommit",
    "Heartbeat": "FindCoordinator Heartbeat",
    "LeaveGroup": "",
}
"""By API, what most clients send until they repeat the request; they leave a group only once."""
RECOVERIES: Final = {
    "java": RECOVERY,
    "franz-go": {
        **RECOVERY,
        "SyncGroup": "FindCoordinator SyncGroup",
        "LeaveGroup": "FindCoordinator LeaveGroup",
    },
    "kafka-python": RECOVERY,
    # It reports the error to the application, and fetches the offsets again after a rebalance.
    "confluent-kafka": {**RECOVERY, "OffsetFetch": "FindCoordinator JoinGroup OffsetFetch"},
    # It ignores the error and fetches the offsets of the partitions that the answer left out.
    "aiokafka": {**RECOVERY, "OffsetFetch": "OffsetFetch"},
}
REPORTING: Final = {"confluent-kafka"}
"""Clients whose application sees the error of OffsetFetch."""
HEARTBEATS: Final = 3
"""So often a member must be seen alive before the test says that it sends no OffsetFetch."""


@pytest.fixture(scope="module")
def lab() -> Iterator[MiniBroker]:
    """A broker that these tests share."""
    settings = {"group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": False}
    with MiniBroker(settings=settings) as broker:
        yield broker


class Observer:
    """The rules that fail one group's requests, and what the journal has of it."""

    def __init__(self, lab: MiniBroker, journal: RecordedJournal, group: str) -> None:
        self._lab, self._journal, self._group = lab, journal, group
        self.rules: dict[str, FaultHandle] = {}

    def fail_once(self, api: str) -> None:
        self.rules[api] = self._lab.faults.add(
            "error", api=api, group=self._group, error="NOT_COORDINATOR", first=1
        )

    def rebalance(self) -> None:
        assert self._lab.faults.act("rebalance", group=self._group) == 1

    def requests_after_error(self, api: str) -> list[str]:
        """The APIs of the group's requests after the error, in order."""
        fired: list[Entry] = self._journal.entries(
            kind="fault", details={"rule": self.rules[api].id}
        )
        return [
            each["api"]
            for each in self._journal.entries(kind="request", group=self._group)
            if fired and each["sequence"] > fired[0]["sequence"]
        ]

    def sent_after_error(self, failed: str, api: str, times: int = 1) -> bool:
        """Whether the group has requested an API so often since another one failed."""
        return self.requests_after_error(failed).count(api) >= times

    def recovery(self, api: str) -> set[str]:
        """What a client sent to recover, up to the repeated request if there is one."""
        sent = self.requests_after_error(api)
        end = sent.index(api) + 1 if api in sent else len(sent)
        return set(sent[:end]) & {"FindCoordinator", "JoinGroup", api}


def poll_until(client: ClientProcess, done: Callable[[], bool], *wanted: int) -> str:
    """Poll until the wanted values are read and something is done; return the first error."""
    missing, deadline = set(wanted), time.monotonic() + 2 * PATIENCE_S
    while missing or not done():
        if time.monotonic() > deadline:
            raise TimedOut(f"not read: {missing}; done: {done()}")
        found, error = client.poll()
        if error:
            return error
        missing -= {value for values in found.values() for value in values}
    return ""


def join(client: ClientProcess, observer: Observer, topic: str, *wanted: int) -> str:
    """Subscribe and read; return the error that the application sees, if any."""
    client.subscribe(topic)
    error = poll_until(client, lambda: True, *wanted)
    if error:
        alive = partial(observer.sent_after_error, "OffsetFetch", "Heartbeat", HEARTBEATS)
        assert poll_until(client, alive) == ""
        assert not observer.sent_after_error("OffsetFetch", "OffsetFetch")
        observer.rebalance()
        assert poll_until(client, lambda: True, *wanted) == ""
    return error


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.java] if name == "java" else []) for name in NAMES],
)
def test_not_coordinator_in_every_group_api(
    lab: MiniBroker, name: str, fresh: Callable[[str], str]
) -> None:
    group, topic = fresh("group"), lab.create_topic(fresh("faults"), partitions=2)
    with (
        lab.journal as journal,
        lab.faults,
        ClientProcess(command_of(name), lab.bootstrap_servers, group=group) as client,
    ):
        observer = Observer(lab, journal, group)
        client.send(f"{topic}-0", 1, 2)
        for api in JOINING:
            observer.fail_once(api)
        error = join(client, observer, topic, 1, 2)
        for value, api in enumerate(REPEATED, 3):
            observer.fail_once(api)
            client.send(f"{topic}-1", value)  # Without a new record, some commit nothing.
            repeated = partial(observer.sent_after_error, api, api)
            assert poll_until(client, repeated, value) == ""
        observer.fail_once("LeaveGroup")
        client.end()
        assert {api: observer.rules[api].hits for api in APIS} == dict.fromkeys(APIS, 1)
        found = {api: observer.recovery(api) for api in APIS}
    assert found == {api: set(each.split()) for api, each in RECOVERIES[name].items()}
    assert ("NOT_COORDINATOR" in error) == (name in REPORTING), error
    if RECOVERIES[name]["LeaveGroup"]:
        assert lab.control.get("v1", "groups", group)["members"] == []

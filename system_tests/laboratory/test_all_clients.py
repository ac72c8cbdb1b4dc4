"""Five client libraries meet held rebalances, busy transactions and broken Fetch responses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from minibroker.testing import MiniBroker
from minibroker.testing.faults import FaultHandle
from system_tests.harness.waiting import PATIENCE_S, TimedOut
from system_tests.histories.conftest import NAMES, command_of
from system_tests.laboratory.processes import ClientProcess

pytestmark = pytest.mark.minibroker

Names = Callable[[str], str]

CHECKSUM_ERRORS = ("crc", "corrupt", "exception when fetching the next record")
"""Texts of the clients' errors; Java names the cause in a second exception."""

ALL = [
    pytest.param(name, id=name, marks=[pytest.mark.java] if name == "java" else [])
    for name in NAMES
]
OTHERS = [each for each in ALL if each.id in ("java", "franz-go")]
"""Those that `test_fault_rules.py` does not test."""


@pytest.fixture(params=ALL)
def client_command(request: pytest.FixtureRequest) -> list[str]:
    """The command of each client in turn."""
    return command_of(request.param)


@pytest.fixture(scope="module")
def lab() -> Iterator[MiniBroker]:
    """A broker that these tests share."""
    settings = {"group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": False}
    with MiniBroker(settings=settings) as broker:
        yield broker


@pytest.fixture
def topic(lab: MiniBroker, fresh: Names) -> str:
    return lab.create_topic(fresh("faults"), partitions=2)


def read(client: ClientProcess, wanted: set[int]) -> list[str]:
    """Poll until all values were read; the texts of errors on the way."""
    errors: list[str] = []
    missing, deadline = set(wanted), time.monotonic() + 2 * PATIENCE_S
    while missing:
        if time.monotonic() > deadline:
            raise TimedOut(f"not read: {missing}; errors: {errors}")
        found, error = client.poll()
        errors += [error] if error else []
        missing -= {value for values in found.values() for value in values}
    return errors


def read_in_order(client: ClientProcess, key: str, count: int) -> list[int]:
    """Poll until there are so many values; errors are passed over."""
    found: list[int] = []
    deadline = time.monotonic() + 2 * PATIENCE_S
    while len(found) < count:
        if time.monotonic() > deadline:
            raise TimedOut(f"read only {found}")
        found += client.poll()[0].get(key, [])
    return found


def members(lab: MiniBroker, group: str) -> set[str]:
    return {each["member_id"] for each in lab.control.get("v1", "groups", group)["members"]}


def poll_until_held(client: ClientProcess, rule: FaultHandle) -> None:
    """Poll until a rule holds something; the last poll may still be running."""
    deadline = time.monotonic() + PATIENCE_S
    client.request("poll", steps=[{"poll": {}}])
    while not rule.holds:
        if time.monotonic() > deadline:
            raise TimedOut(f"{rule!r} matched {rule.matches} times")
        if client.has_answered():
            client.answer()
            client.request("poll", steps=[{"poll": {}}])


def test_rebalance_is_held_while_a_member_dies(
    lab: MiniBroker, client_command: list[str], topic: str, fresh: Names
) -> None:
    group = fresh("group")
    servers = lab.bootstrap_servers
    with (
        ClientProcess(client_command, servers, group=group) as survivor,
        ClientProcess(client_command, servers, group=group) as other,
    ):
        survivor.send(f"{topic}-0", 1)
        survivor.subscribe(topic)
        read(survivor, {1})
        (first,) = members(lab, group)
        with lab.faults as faults:
            rebalance = faults.add("hold", point="group.preparing_rebalance", group=group)
            other.subscribe(topic)
            # The Java client joins a group only in its polls, and not yet in the first one.
            poll_until_held(other, rebalance)
            assert rebalance.holds == [{"process": "worker-0", "group": group}]
            while len(members(lab, group)) < 2:
                survivor.poll()
            other.kill()
            (dead,) = members(lab, group) - {first}
            assert faults.act("expire_member", group=group, member=dead) == 1
            assert lab.control.get("v1", "groups", group)["state"] == "PreparingRebalance"
        survivor.send(f"{topic}-0", 2)
        survivor.send(f"{topic}-1", 3)
        read(survivor, {2, 3})
        assert members(lab, group) == {first}


def test_transaction_survives_ten_seconds_of_concurrent_transactions(
    lab: MiniBroker, client_command: list[str], topic: str, fresh: Names
) -> None:
    transactional_id = fresh("tx")
    with ClientProcess(
        client_command, lab.bootstrap_servers, transactional_id=transactional_id
    ) as client:
        lab.freeze()
        # Clients of transaction version 2 add partitions with the first records of each.
        busy = [
            lab.faults.add(
                "error",
                api=api,
                transactional_id=transactional_id,
                error="CONCURRENT_TRANSACTIONS",
                until_ms=10_000,
            )
            for api in ("AddPartitionsToTxn", "Produce")
        ]
        client.request("txn", steps=[{"send": f"{topic}-0", "value": 1}], abort=False)
        deadline = time.monotonic() + PATIENCE_S
        while all(each.hits < 3 for each in busy):
            assert time.monotonic() < deadline
        lab.advance(10_000)
        done = client.answer()
        lab.freeze(False)
        lab.faults.clear()
        assert done["type"] == "ok", done
        client.ask("assign", keys=[f"{topic}-0"], from_beginning=True)
        assert read(client, {1}) == []


@pytest.mark.parametrize("client_command", OTHERS, indirect=True)
def test_disconnect_in_the_middle_of_a_fetch_response_loses_no_record(
    lab: MiniBroker, client_command: list[str], topic: str
) -> None:
    with ClientProcess(client_command, lab.bootstrap_servers) as client:
        client.send(f"{topic}-0", 1, 2, 3)
        with lab.faults as faults:
            cut = faults.add("disconnect", api="Fetch", topic=topic, at="middle", first=2)
            client.ask("assign", keys=[f"{topic}-0"], from_beginning=True)
            assert read_in_order(client, f"{topic}-0", 3) == [1, 2, 3]
            assert cut.hits == 2


@pytest.mark.parametrize("client_command", OTHERS, indirect=True)
def test_wrong_checksum_is_reported(lab: MiniBroker, client_command: list[str], topic: str) -> None:
    with ClientProcess(client_command, lab.bootstrap_servers) as client:
        client.send(f"{topic}-0", 1, 2)
        with lab.faults as faults:
            faults.add("corrupt", part="crc", topic=topic, first=1)
            client.ask("assign", keys=[f"{topic}-0"], from_beginning=True)
            error = ""
            while not error:
                error = client.poll()[1]
            # The Java client keeps what it has fetched, and repeats the error.
            client.ask("reopen")
            client.ask("assign", keys=[f"{topic}-0"], from_beginning=True)
            errors = [error, *read(client, {1, 2})]
    assert any(text in error.lower() for text in CHECKSUM_ERRORS), errors

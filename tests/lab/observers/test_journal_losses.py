"""What a process has recorded when it dies is in the journal, or a loss of exactly that size."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.request import urlopen

import pytest

from minibroker.lab.verdicts.judging import UnknownClient
from minibroker.testing import ControlError, DidNotHappen, JournalIncomplete, MiniBroker
from minibroker.testing.journal import Entry, RecordedJournal
from minibroker.testing.verdicts import assert_well_behaved
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from tests.broker.network.raw_client import RawClient
from tests.lab.observers.test_request_journal import produce

BEAT = HeartbeatRequest(group_id="g", member_id="m")
REQUESTS = 20
WAIT_S = 60.0
LAYOUTS = ("combined", "separate")


@pytest.fixture(params=LAYOUTS)
def broker(request: pytest.FixtureRequest) -> Iterator[MiniBroker]:
    settings = {"process.mode": request.param, "num.network.threads": 1, "num.io.threads": 1}
    with MiniBroker(settings=settings) as started:
        yield started


@pytest.fixture
def journal(broker: MiniBroker) -> Iterator[RecordedJournal]:
    with broker.journal as started:
        yield started


def beat(broker: MiniBroker, count: int, name: str = "shop") -> int:
    """Send requests while the broker answers; return the number of answers."""
    answers = 0
    with (
        suppress(OSError, EOFError, AssertionError),
        RawClient(broker.bootstrap_servers, name) as client,
    ):
        for _ in range(count):
            client.ask(BEAT, 4)
            answers += 1
    return answers


def processes(broker: MiniBroker) -> dict[str, dict[str, int]]:
    """The processes by role, with ``pid`` and ``restarts``."""
    while True:
        with suppress(ControlError, OSError):  # The controller is being restarted.
            found = broker.control.get("v1", "health")["processes"]
            return {each["name"]: each for each in found}


def wait_restarted(broker: MiniBroker, name: str, former: dict[str, dict[str, int]]) -> None:
    while True:
        found = processes(broker)[name]
        if found["pid"] not in {0, None, former[name]["pid"]}:
            return


def losses(journal: RecordedJournal) -> list[Entry]:
    return journal.entries(kind="lost")


def responses(journal: RecordedJournal) -> int:
    return len(journal.entries(kind="response", api="Heartbeat"))


@pytest.mark.parametrize("role", ["processor-0", "worker-0", "acceptor"])
def test_process_that_an_action_kills_hands_over_first(
    broker: MiniBroker, journal: RecordedJournal, role: str
) -> None:
    broker.faults.add("error", api="Heartbeat", error="NOT_COORDINATOR", first=1)
    for number in range(1, 4):
        before = processes(broker)
        assert beat(broker, REQUESTS) == REQUESTS
        broker.faults.act("kill", process=role)
        assert responses(journal) == number * REQUESTS
        wait_restarted(broker, role, before)
    assert losses(journal) == []
    with pytest.raises(DidNotHappen, match=r"entry \d+ matches"):
        journal.assert_absent(kind="response", error="NOT_COORDINATOR")
    journal.assert_absent(kind="response", error="NOT_ENOUGH_REPLICAS")


def test_controller_that_an_action_kills_leaves_the_journal_to_the_next_one(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    before = processes(broker)
    assert beat(broker, REQUESTS) == REQUESTS
    broker.control.get("v1", "journal", "state")
    assert beat(broker, REQUESTS) == REQUESTS
    with suppress(ControlError, OSError):
        broker.faults.act("kill", process="controller")
    wait_restarted(broker, "controller", before)
    assert beat(broker, REQUESTS) == REQUESTS
    assert responses(journal) == 3 * REQUESTS
    assert losses(journal) == []
    assert [entry["sequence"] for entry in journal.entries()] == list(
        range(1, len(journal.entries()) + 1)
    )
    journal.assert_in_order({"kind": "state", "details": {"to": "killed"}}, {"api": "Heartbeat"})


def test_process_that_a_rule_kills_hands_over_first(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    before = processes(broker)
    with broker.faults as faults:
        faults.add("error", api="Heartbeat", error="NOT_COORDINATOR", first=1)
        faults.add("kill", api="Heartbeat", process="worker-0", nth=REQUESTS)
        beat(broker, REQUESTS)
    wait_restarted(broker, "worker-0", before)
    assert len(journal.entries(kind="request", api="Heartbeat")) == REQUESTS
    assert responses(journal) >= REQUESTS - 1
    assert losses(journal) == []


@pytest.mark.parametrize("role", ["processor-0", "worker-0"])
def test_process_that_is_killed_from_outside_leaves_a_loss_of_that_size(
    broker: MiniBroker, journal: RecordedJournal, role: str
) -> None:
    before = processes(broker)
    combined = before["processor-0"]["pid"] == before["worker-0"]["pid"]
    assert beat(broker, REQUESTS) == REQUESTS
    assert responses(journal) == REQUESTS
    seen = journal.entries()[-1]["sequence"]
    # Between two collections nothing is handed over.
    os.kill(before["controller"]["pid"], signal.SIGSTOP)
    answers = beat(broker, REQUESTS, "lost")
    assert answers == REQUESTS
    os.kill(before[role]["pid"], signal.SIGKILL)
    os.kill(before["controller"]["pid"], signal.SIGCONT)
    is_lost = combined or role == "processor-0"
    page = broker.control.get("v1", "journal", query={"after": seen})
    found = [entry for entry in page["entries"] if entry["kind"] == "lost"]
    if not is_lost:
        assert found == []
        assert responses(journal) == 2 * REQUESTS
        return
    entry = next(each for each in found if each["role"] == "processor-0")
    # The connections of both clients, and each request with its response.
    assert entry["details"]["entries"] in {2 * REQUESTS + 1, 2 * REQUESTS + 2, 2 * REQUESTS + 3}
    assert entry["details"]["reason"] == "process_ended"
    assert page["dropped"] == sum(each["details"]["entries"] for each in found)
    assert page["last"] == page["dropped"] + len(journal.entries()) - len(losses(journal))
    with pytest.raises(DidNotHappen, match="were lost, so it is unknown"):
        journal.assert_absent(kind="response", error="NOT_COORDINATOR")
    with pytest.raises(DidNotHappen, match="were lost, which may have matched"):
        journal.assert_happened(kind="request", client_id="lost")
    with pytest.raises(JournalIncomplete, match="entries of the journal are lost"):
        assert_well_behaved(broker, "shop", allow=["software-name"])
    with pytest.raises(UnknownClient, match="entries are lost"):
        assert_well_behaved(broker, "lost")
    journal.assert_absent(role="acceptor", kind="fault")
    wait_restarted(broker, role, before)
    later = journal.entries()[-1]["sequence"]
    assert beat(broker, REQUESTS) == REQUESTS
    page = broker.control.get("v1", "journal", query={"after": later, "api": "Heartbeat"})
    assert [each["kind"] for each in page["entries"]] == ["request", "response"] * REQUESTS


def test_controller_that_is_killed_from_outside_leaves_a_loss_of_all_entries(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    before = processes(broker)
    assert beat(broker, REQUESTS) == REQUESTS
    last = broker.control.get("v1", "journal", "state")["last"]
    os.kill(before["controller"]["pid"], signal.SIGKILL)
    wait_restarted(broker, "controller", before)
    view = broker.control.get("v1", "journal", "state")
    assert view["enabled"]
    first = journal.entries()[0]
    assert (first["kind"], first["role"]) == ("lost", "")
    assert first["sequence"] == first["details"]["entries"] >= last
    with pytest.raises(DidNotHappen, match="were lost"):
        journal.assert_absent(error="NOT_COORDINATOR")
    assert beat(broker, REQUESTS) == REQUESTS
    assert responses(journal) == REQUESTS
    found = journal.wait_for(kind="request", client_id="shop")
    assert found["sequence"] > first["sequence"]


@pytest.mark.parametrize("action", ["kill", "SIGKILL"])
def test_every_answer_of_a_busy_broker_is_in_the_journal_or_in_a_loss(
    broker: MiniBroker, journal: RecordedJournal, action: str
) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(beat, broker, 10**6, f"client-{at}") for at in range(4)]
        journal.assert_happened(500, kind="response", api="Heartbeat", timeout_s=WAIT_S)
        before = processes(broker)
        if action == "kill":
            broker.faults.act("kill", process="processor-0")
        else:
            os.kill(before["processor-0"]["pid"], signal.SIGKILL)
        answers = sum(each.result() for each in found)
    wait_restarted(broker, "processor-0", before)
    recorded = responses(journal)
    lost = sum(entry["details"]["entries"] for entry in losses(journal))
    assert recorded <= answers <= recorded + lost
    view = broker.control.get("v1", "journal", "state")
    assert view["dropped"] == lost
    assert view["last"] == view["entries"] + lost


def test_paused_process_makes_absence_unknown(broker: MiniBroker, journal: RecordedJournal) -> None:
    pid = processes(broker)["processor-0"]["pid"]
    controller = processes(broker)["controller"]["pid"]
    assert beat(broker, REQUESTS) == REQUESTS
    journal.entries()
    os.kill(controller, signal.SIGSTOP)
    assert beat(broker, 1) == 1
    os.kill(pid, signal.SIGSTOP)
    os.kill(controller, signal.SIGCONT)
    try:
        with pytest.raises(DidNotHappen, match="processor-0 does not respond and has"):
            journal.assert_absent(error="NOT_COORDINATOR")
        assert broker.control.get("v1", "journal", "state")["pending"] > 0
    finally:
        os.kill(pid, signal.SIGCONT)
    journal.assert_happened(REQUESTS + 1, kind="response", api="Heartbeat", timeout_s=WAIT_S)
    journal.assert_absent(error="NOT_COORDINATOR")


def test_worker_that_crashes_in_an_append_saves_what_it_recorded(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    broker.create_topic("orders")
    before = processes(broker)
    assert beat(broker, REQUESTS) == REQUESTS
    with broker.faults as faults, suppress(OSError, EOFError, AssertionError):
        faults.add("fail_append", topic="orders", crash=True, first=1)
        with RawClient(broker.bootstrap_servers, "writer") as client:
            client.ask(produce(topic="orders"), 9)
    wait_restarted(broker, "worker-0", before)
    assert responses(journal) == REQUESTS
    journal.assert_happened(kind="request", api="Produce", client_id="writer")
    assert losses(journal) == []


def test_clients_of_the_journal_see_a_loss_whatever_they_ask_for(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    before = processes(broker)
    os.kill(before["controller"]["pid"], signal.SIGSTOP)
    assert beat(broker, REQUESTS) == REQUESTS
    os.kill(before["processor-0"]["pid"], signal.SIGKILL)
    os.kill(before["controller"]["pid"], signal.SIGCONT)
    loss = journal.wait_for(kind="lost", details={"reason": "process_ended"})
    assert journal.entries(kind="request", client_id="shop") == []
    assert loss in journal.entries(kind="lost,state")
    with pytest.raises(DidNotHappen):
        journal.wait_for(kind="request", client_id="shop", timeout_s=0)
    path = f"{broker.control_url}/v1/journal/stream?kind=response&topic=none"
    with urlopen(path, timeout=WAIT_S) as stream:
        lines = (json.loads(line) for line in stream if line.strip())
        assert next(line for line in lines if line["role"] == "processor-0") == loss

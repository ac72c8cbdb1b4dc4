"""Activity of real clients is recorded, and kills cost what the guide says."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer

from minibroker.broker.settings import FORMAT_ARROW, FORMAT_JSON
from minibroker.lab.activity.events import TOPIC, UNWRITTEN_MAX
from minibroker.lab.observers.activity_sender import PENDING_MAX
from minibroker.runtime.restarts import RESTARTS_MAX
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from system_tests.faults.conftest import Starter
from system_tests.faults.killing import kill
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask, processes, wait_ready
from system_tests.harness.waiting import PATIENCE_S, wait_until
from tests.lab.activity.decoding import events_in
from tests.simulation.client import frame

pytestmark = pytest.mark.minibroker

ON = ("--set", "activity.enable=true", "--set", "num.io.threads=2")
SEPARATE = ("--set", "process.mode=separate", "--set", "num.network.threads=2")
LAYOUTS = pytest.mark.parametrize("layout", [(), SEPARATE], ids=["combined", "separate"])
"""Worker 0 shares a process with the only network processor, or no worker shares one."""
PRODUCE = 0
AHEAD = 64
Event = dict[str, Any]


def produce(broker: RunningBroker, client_id: str, count: int) -> int:
    """Sends records one by one, each in a request of its own, and how many were acknowledged."""
    done: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": client_id,
            "linger.ms": 0,
            "enable.idempotence": True,
            "log_level": 0,
        }
    )
    for _ in range(count):
        producer.produce("t", b"v", on_delivery=lambda error, _: done.append(error))
        assert producer.flush(PATIENCE_S) == 0
    return done.count(None)


def events_of(broker: RunningBroker) -> Iterator[Event]:
    """Yield all events up to that of another client, which connects last."""
    last = f"last-{time.monotonic_ns()}"
    produce(broker, last, 1)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": last,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([TOPIC])
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        events = events_in(message.value())
        yield from events
        if any(each.get("client_id") == last and each["api_key"] == PRODUCE for each in events):
            break
    consumer.close()


def counter(broker: RunningBroker, name: str) -> float:
    with urlopen(f"{broker.control_url}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def events_with_all_drops(broker: RunningBroker) -> tuple[list[Event], int]:
    """Return all events, and how many were dropped: each counted drop is recorded.

    A process may report its drops later than other processes, and once more if the recorder dies
    meanwhile.
    """

    def look() -> tuple[list[Event], int] | None:
        counted = counter(broker, "minibroker_activity_dropped_total")
        events = list(events_of(broker))
        dropped = sum(event["dropped"] for event in events if event["kind"] == "dropped")
        return (events, dropped) if dropped >= counted else None

    found = wait_until(look, "all that was dropped to be reported")
    assert found is not None
    return found


def count_produce_requests(events: list[Event]) -> Counter[str]:
    """Numbers only grow; how many Produce requests there are of each client."""
    sequences = [event["sequence"] for event in events]
    assert sequences == sorted(set(sequences))
    produce_events = (event for event in events if event.get("api_key") == PRODUCE)
    return Counter(event["client_id"] for event in produce_events)


@pytest.mark.parametrize("activity_format", [FORMAT_ARROW, FORMAT_JSON])
def test_every_request_of_real_clients_is_recorded_once(
    start: Starter, activity_format: str
) -> None:
    broker = start(*ON, "--set", f"activity.format={activity_format}")
    names = [f"client-{number}" for number in range(4)]
    with ThreadPoolExecutor(len(names)) as clients:
        sent = list(clients.map(lambda name: produce(broker, name, 300), names))
    assert sent == [300] * len(names)
    events = list(events_of(broker))
    found = count_produce_requests(events)
    assert {name: found[name] for name in names} == dict.fromkeys(names, 300)
    assert {event["records"] for event in events if event.get("api_key") == PRODUCE} == {1}
    happened = Counter(event.get("happened") for event in events if event["kind"] == "connection")
    assert happened["accepted"] >= happened["closed"] > 0
    assert not [event for event in events if event["kind"] == "dropped"]


@LAYOUTS
def test_killed_recorder_reports_dropped_events(layout: tuple[str, ...], start: Starter) -> None:
    broker = start(*ON, *layout)
    acknowledged = 0
    for _ in range(3):
        acknowledged += produce(broker, "client", 200)
        kill(broker, "recorder")
        wait_ready(broker)
    events, dropped = events_with_all_drops(broker)
    found = count_produce_requests(events)["client"]
    # Missing events were dropped and counted; some of the dropped ones may exist.
    assert found <= acknowledged <= found + dropped


def test_owner_kills_lose_no_event(start: Starter) -> None:
    # An owner that shares a process with a processor takes the processor's unsent events with it.
    broker = start(*ON, *SEPARATE)
    with ThreadPoolExecutor(1) as clients:
        producing = clients.submit(produce, broker, "client", 2000)
        for _ in range(RESTARTS_MAX - 2):  # The supervisor gives up a role that dies too often.
            for name in ("worker-0", "worker-1"):
                if not producing.done():
                    kill(broker, name)
                    wait_ready(broker)
    acknowledged = producing.result()
    assert acknowledged == 2000
    events = list(events_of(broker))
    count_produce_requests(events)
    # A request whose owner died was retried, and is recorded if it was answered at all.
    answered = [
        event
        for event in events
        if event.get("client_id") == "client" and event["api_key"] == PRODUCE
    ]
    assert sum(event["error_code"] == 0 for event in answered) >= acknowledged
    assert not [event for event in events if event["kind"] == "dropped"]


def send_pipelined(broker: RunningBroker, count: int) -> None:
    """Send requests without waiting for each response, but for all of them at the end."""
    hello = frame(ApiVersionsRequest(), 0, client_id="fast")
    with socket.create_connection(broker.address) as sock, sock.makefile("rb") as answers:
        sock.sendall(hello)
        length = answers.read(4)
        size = 4 + len(answers.read(int.from_bytes(length, "big")))
        for _ in range(count // AHEAD):
            sock.sendall(hello * AHEAD)
            assert len(answers.read(size * AHEAD)) == size * AHEAD


def test_stopped_recorder_does_not_block_requests(start: Starter) -> None:
    broker = start(*ON, "--set", "num.network.threads=1")
    recorder = processes(broker)["recorder"].pid
    assert recorder is not None
    os.kill(recorder, signal.SIGSTOP)
    requests = 2 * (PENDING_MAX + UNWRITTEN_MAX)
    send_pipelined(broker, requests)
    os.kill(recorder, signal.SIGCONT)
    events = list(events_of(broker))
    count_produce_requests(events)
    dropped = sum(event["dropped"] for event in events if event["kind"] == "dropped")
    found = sum(event.get("client_id") == "fast" for event in events)
    assert found > PENDING_MAX
    assert dropped > 0
    # In addition to the events of a connection and of later clients.
    assert requests <= found + dropped <= requests + 20


def test_recorder_crash_loop_does_not_stop_the_broker(start: Starter) -> None:
    broker = start(*ON)
    for _ in range(RESTARTS_MAX + 1):
        recorder = wait_until(lambda: processes(broker)["recorder"].pid, "another recorder")
        assert recorder is not None
        with suppress(ProcessLookupError):  # the controller doesn't know yet that it is gone
            os.kill(recorder, signal.SIGKILL)
        assert produce(broker, "client", 10) == 10
        assert ask(broker, "GET", "/v1/health")["ready"]
    wait_until(
        lambda: processes(broker)["recorder"].restarts > RESTARTS_MAX, "it to come once more"
    )
    assert "the broker keeps running and restarts it in" in broker.printed()
    produce(broker, "after", 10)
    events, dropped = events_with_all_drops(broker)
    assert count_produce_requests(events)["after"] == 10
    assert count_produce_requests(events)["client"] + dropped >= 10 * (RESTARTS_MAX + 1)


@LAYOUTS
def test_recorder_process_has_lower_cpu_priority(layout: tuple[str, ...], start: Starter) -> None:
    broker = start(*ON, *layout)
    pids = {name: each.pid for name, each in processes(broker).items()}
    niceness = {name: os.getpriority(os.PRIO_PROCESS, pid) for name, pid in pids.items() if pid}
    assert niceness["recorder"] > niceness["processor-0"] == niceness["worker-0"]


def test_activity_topic_is_recreated_after_reset(start: Starter) -> None:
    broker = start(*ON)
    produce(broker, "before", 10)
    assert count_produce_requests(list(events_of(broker)))["before"] == 10
    ask(broker, "POST", "/v1/reset")
    produce(broker, "after", 10)
    events = list(events_of(broker))
    assert count_produce_requests(events)["after"] == 10
    assert "before" not in count_produce_requests(events)

"""A real minute of real clients at the same time, each at its own quota.

There is a minute of byte quotas and one of request quotas, because nine clients at once do not get
enough of the machine to use all of both in time.

A quota is an average, so a client that was idle may use seconds' worth at once and be throttled as
long; that repeats each time the average forgets it, and the throughput of a minute says little
about the quota. So no client here is ever idle: producers keep the pace of their quota until the
average covers it, consumers find as much as that, and request quotas grow. From then on all do what
they can, and the throughput is the quota, within a percent. Bytes are counted by clients: records
that were acknowledged, or received, times the size of one in a request or response of its own.
Request time can only be counted by the broker.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import RequestHeader, encode_request_header
from system_tests.connections.conftest import Dial, Limited
from system_tests.connections.dialling import Client, set_quota, set_quotas
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask
from system_tests.quotas import saturating_clients
from system_tests.quotas.quota_requests import VERSION
from system_tests.quotas.saturating_clients import (
    ANONYMOUS,
    FILLED_TOPIC,
    PATIENCE_S,
    TOPIC,
    ClientRun,
    Events,
    Pace,
    Work,
)

pytestmark = [
    pytest.mark.minibroker,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(240),
]

WINDOWS = 11
STARTING_S = 5.0
"""For processes to connect, except for those with a request quota, which start when it starts to
grow: their former usage, and the throttle for it, would be a lump in their average, again each
time that it expires, which costs them a percent of the minute.
"""
EVEN_S = WINDOWS + 2.0
"""How long all keep the pace before they do what they can."""
STEP_S = 0.1
MINUTE_S = 60.0
SPAN_S = 3.0 * WINDOWS
SETTLED_S = EVEN_S + 2
"""When all have done that for a little while."""
STARTS_S = MINUTE_S - SETTLED_S - SPAN_S
ERROR_MAX = 0.01
CROWD_MAX = 4
"""Runnable processes per processor of the machine.

With more, broker and client are seconds late to use their quota, of which Kafka's formula gives
back only a part (`tests/broker/quotas/test_rate.py` says how much: 200 ms late each fourth time is
1.2 %); and interrupted work takes longer than one throttle can compensate for.
"""
CROWDED_ERROR_MAX = 0.5

AHEAD = 4
VALUE = bytes(10_000)
SMALL = bytes(10)
PRODUCED, FETCHED, WORKED = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
QUOTAS = {PRODUCED: 154_000.0, FETCHED: 462_000.0, WORKED: 4.0}
"""A fetch that is held goes out empty, which leaves about one response a window unused. Of time it
is so little that two clients, each some tens of milliseconds late, can still ask for all of it
(`tests/broker/quotas/test_rate.py` says what becomes of it where they can't).
"""
DECOYS = {
    "too little": {PRODUCED: 30_000.0, FETCHED: 30_000.0, WORKED: 0.5},
    "too much": {PRODUCED: 10.0**9, FETCHED: 10.0**9, WORKED: 10.0**6},
}
USERS = ("alice", "bob", "carol", "dave", "erin", "frank")
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class Case(NamedTuple):
    """A client, the level of its quota, and the type of the quota."""

    work: Work
    level: str
    user: str
    quota: str

    @property
    def client_id(self) -> str:
        return f"{self.work.__name__}-{self.quota}"

    @property
    def value(self) -> bytes:
        return SMALL if self.quota == WORKED else VALUE

    @property
    def size(self) -> float:
        return QUOTAS[self.quota]

    def entity(self) -> dict[str, str | None]:
        """Return the entity of the quota."""
        user: dict[str, str | None] = {"user": self.user}
        client: dict[str, str | None] = {"client-id": self.client_id}
        return {"user": user, "client": client, "user and client": user | client}[self.level]

    def decoys(self) -> list[tuple[dict[str, str | None], str]]:
        """Quotas that must not hold: of places that come later, and of others."""
        me, other = self.client_id, "other"
        found: dict[str, list[tuple[dict[str, str | None], str]]] = {
            "user": [
                ({"client-id": me}, "too little"),
                ({"user": self.user, "client-id": other}, "too much"),
            ],
            "client": [
                ({"client-id": other}, "too little"),
                ({"user": "other", "client-id": me}, "too much"),
            ],
            "user and client": [
                ({"user": self.user}, "too little"),
                ({"user": self.user, "client-id": None}, "too much"),
                ({"client-id": me}, "too little"),
            ],
        }
        return found[self.level]


CASES = [
    Case(saturating_clients.produce_with_librdkafka, "user", "alice", PRODUCED),
    Case(saturating_clients.produce_with_kafka_python, "client", ANONYMOUS, PRODUCED),
    Case(saturating_clients.produce_with_aiokafka, "user and client", "bob", PRODUCED),
    Case(saturating_clients.consume_with_librdkafka, "user and client", "carol", FETCHED),
    Case(saturating_clients.consume_with_kafka_python, "user", "dave", FETCHED),
    Case(saturating_clients.consume_with_aiokafka, "client", ANONYMOUS, FETCHED),
    Case(saturating_clients.produce_with_librdkafka, "client", ANONYMOUS, WORKED),
    Case(saturating_clients.produce_with_kafka_python, "user and client", "erin", WORKED),
    Case(saturating_clients.produce_with_aiokafka, "user", "frank", WORKED),
]


def bytes_of_one(case: Case) -> int:
    """Return what a quota counts of one record: a request with its header, or a response with its
    length.

    The versions of clients differ by some bytes of ten thousand.
    """
    batch = build_batch([Record(value=case.value)])
    if case.quota == PRODUCED:
        header = encode_request_header(RequestHeader(ApiKey.PRODUCE, VERSION, 1, case.client_id))
        data = [PartitionProduceData(index=0, records=batch)]
        topics = [TopicProduceData(name=TOPIC, partition_data=data)]
        return len(header) + len(encode(ProduceRequest(acks=1, topic_data=topics), VERSION))
    answer = [FetchableTopicResponse(topic=FILLED_TOPIC, partitions=[PartitionData(records=batch)])]
    return 4 + len(encode(FetchResponse(responses=answer), 11))


def rate(events: Events, began: float) -> float:
    """Return the rate per second over three windows of a quota, wherever they start.

    The throughput is periodic, so the average is taken over starts, too.
    """
    starts = [began + SETTLED_S + number / 10 for number in range(int(STARTS_S * 10))]
    passed = (n for start in starts for at, n in events if start <= at < start + SPAN_S)
    return sum(passed) / SPAN_S / len(starts)


def spread(samples: Events) -> Events:
    """Spread what a quota counted evenly over the time of each of its samples, by their starts.

    A sample ends where the next one starts, which is a second later or more; the last one
    continues.
    """
    found: Events = []
    for (at, total), (after, _) in pairwise(sorted(samples)):
        parts = max(round((after - at) / STEP_S), 1)
        found += [(at + (after - at) * n / parts, total / parts) for n in range(parts)]
    return found


class Feeder:
    """Gives consumers as much as they may have, and later more, one record a batch."""

    def __init__(self, client: Client) -> None:
        batch = build_batch([Record(value=VALUE)])
        data = [PartitionProduceData(index=0, records=batch)]
        topics = [TopicProduceData(name=FILLED_TOPIC, partition_data=data)]
        self._request = ProduceRequest(acks=1, topic_data=topics)
        self._client = client
        consumer = next(case for case in CASES if case.quota == FETCHED)
        self._per_s = per_s(consumer) / together(consumer)
        self._fed = 0

    def feed(self, into_s: float) -> None:
        """Return what a consumer may have after so many seconds of the minute."""
        more_s = AHEAD * max(0, into_s - EVEN_S)
        due = self._per_s * min(min(into_s, EVEN_S) + more_s, MINUTE_S + 1)
        while self._fed < due:
            self._client.ask(self._request, VERSION)
            self._fed += 1


def together(case: Case) -> int:
    """How many clients share a case's quota: one cannot send ahead, or not use at once all that it
    may. More of them would get too much by sharing; see `tests/broker/quotas/test_rate.py`.
    """
    return 1 if case.quota == PRODUCED else 2


def per_s(case: Case) -> float:
    """How many records a second make a client's quota."""
    return case.size / bytes_of_one(case)


def note_worked(broker: RunningBroker, case: Case, events: Events) -> None:
    """Update the work for a client, by the start of each of its samples."""
    where = f"user={case.user}&client_id={case.client_id}&type=request"
    why = ask(broker, "GET", f"/v1/quotas/explain?{where}")
    now = time.monotonic()
    for sample in why["samples"]:
        began = now - sample["ago_ms"] / 1000
        # Looks differ by little, and samples begin a second apart.
        events[:] = [event for event in events if abs(event[0] - began) > 0.5]
        events.append((began, sample["total"]))


@pytest.fixture
def broker(limited: Limited, dial: Dial) -> RunningBroker:
    users = " ".join(f'user_{name}="{name}"' for name in USERS)
    started = limited(
        "sasl.enabled.mechanisms=PLAIN",
        f"listener.name.sasl_plaintext.plain.sasl.jaas.config={JAAS} {users};",
        listener="PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    )
    (client,) = dial(started)
    topics = [CreatableTopic(name=TOPIC, num_partitions=3, replication_factor=1)]
    topics += [CreatableTopic(name=FILLED_TOPIC, num_partitions=1, replication_factor=1)]
    client.ask(CreateTopicsRequest(topics=topics, timeout_ms=5000), 5)
    for case in CASES:
        for entity, size in case.decoys():
            set_quota(client, entity, **{case.quota: DECOYS[size][case.quota]})
    return started


def run_the_minute(
    broker: RunningBroker, client: Client, began: float, events: dict[Case, Events]
) -> float:
    """Feed consumers, let request quotas grow, and record the work.

    Return the runnable processes per processor of the machine after the start.
    """
    feeder = Feeder(client)
    timed = [case for case in events if case.quota == WORKED]
    steps = int(MINUTE_S / STEP_S)
    wanted = []
    for step in range(steps + 1):
        into_s = step * STEP_S
        threading.Event().wait(began + into_s - time.monotonic())
        if into_s > SETTLED_S:
            wanted.append(int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]))
        feeder.feed(into_s)
        if step % int(1 / STEP_S):
            continue
        if 1 <= into_s < WINDOWS:
            quota = {WORKED: QUOTAS[WORKED] * (into_s + 1) / WINDOWS}
            set_quotas(client, [(case.entity(), quota) for case in timed])
        if into_s >= WINDOWS:
            for case in timed:
                note_worked(broker, case, events[case])
    return statistics.fmean(wanted) / (os.cpu_count() or 1)


@pytest.mark.parametrize("kind", ["bytes", "time"])
def test_clients_reach_their_quota_rates_over_a_minute(
    kind: str, broker: RunningBroker, dial: Dial
) -> None:
    cases = [case for case in CASES if (case.quota == WORKED) == (kind == "time")]
    (client,) = dial(broker)
    plain, with_sasl = broker.bootstrap_servers.split(",")
    for case in cases:
        share = 1 / WINDOWS if case.quota == WORKED else 1
        set_quota(client, case.entity(), **{case.quota: case.size * share})
    spawning = multiprocessing.get_context("spawn")
    all_started = spawning.Barrier(len(cases) + 1)
    events: dict[Case, Events] = {case: [] for case in cases}
    with ProcessPoolExecutor(
        len(cases), spawning, saturating_clients.wait_for, (all_started,)
    ) as clients:
        for _ in cases:
            clients.submit(int)  # makes a process, as none is idle until all are there
        saturating_clients.wait_for(all_started)
        began = time.monotonic() + STARTING_S
        works = {
            case: clients.submit(
                saturating_clients.run_clients,
                together(case),
                case.work,
                ClientRun(
                    plain if case.user == ANONYMOUS else with_sasl,
                    began + MINUTE_S,
                    case.user,
                    case.client_id,
                    Pace(began, began + EVEN_S, per_s(case)) if case.quota == PRODUCED else None,
                    begins=began if case.quota == WORKED else 0.0,
                ),
                case.value,
            )
            for case in cases
        }
        crowd = run_the_minute(broker, client, began, events)
        for case in cases:
            done = works[case].result(PATIENCE_S)
            if case.quota != WORKED:
                events[case] = done
    found = {
        f"{case.level}: {case.client_id}": (
            rate(spread(events[case]), began)
            if case.quota == WORKED
            else rate(events[case], began) * bytes_of_one(case)
        )
        / case.size
        for case in cases
    }
    print(*found.items(), f"{crowd:.1f} want each processor", sep="\n")  # pytest -s shows it
    error = ERROR_MAX if crowd <= CROWD_MAX else CROWDED_ERROR_MAX
    for name, share in found.items():
        assert abs(share - 1) <= error, f"{name}: {share:.4f}, {crowd:.1f} want a processor"

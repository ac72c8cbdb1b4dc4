"""The watch is killed repeatedly: no alert is lost, and only another watch sends one again.

The due alerts follow from the events that the test produces, and it computes them itself. A kill
follows a sign of progress; the kind of sign and the delay after it are drawn from a printed seed.
``WATCH_SEED`` draws the same again, as far as timing allows, and ``WATCH_KILLS_S`` is the duration
in seconds.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.lab.activity.events import TOPIC
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.control import ask
from system_tests.harness.waiting import SPARK_PATIENCE_S, wait_until
from system_tests.pipeline.standby_job import Standby
from system_tests.pipeline.watch_process import ALERTS, alerts
from tests.pipeline.random_events import completed, written
from tests.pipeline.sample_events import START_S, Event, check, request

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

SEED = int(os.environ.get("WATCH_SEED", time.time_ns() % 1_000_000))
KILLS_S = float(os.environ.get("WATCH_KILLS_S", "60"))
KILLS_MIN = 4
CLIENTS = ("a", "b", "c", "d")
INTERVALS = 2
"""Consecutive intervals that raise or clear an alert."""
PACE_S = 0.1
"""Real time in which an interval of one second is produced."""
PROGRESS_PATHS = ("topic-*/offsets/*", "topic-*/commits/*", "rules/*", "topic-*/state/*/*/*")
"""Paths below the checkpoint; a watch is killed when one changes, or an alert is on the topic."""
KILL_DELAY_MAX_S = 0.2
TEST_CLIENT = "rdkafka"
"""Client-id of this test's own clients; that of a watch comes from Java."""


class Due(NamedTuple):
    """An alert that the test expects."""

    client: str
    state: str
    time_us: int


class UsageProducer(threading.Thread):
    """Produces intervals with or without throttled clients, and computes the expected alerts."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._chance = random.Random(SEED)
        self._stopping = threading.Event()
        self._next = 0
        self._row = dict.fromkeys(CLIENTS, 0)
        self._raised = dict.fromkeys(CLIENTS, False)
        self.due: list[Due] = []

    def run(self) -> None:
        while not self._stopping.wait(PACE_S):
            self._interval({client for client in CLIENTS if self._chance.random() < 0.5})

    def finish(self) -> None:
        """Produce intervals without throttles until every alert is cleared and evaluated."""
        self._stopping.set()
        self.join(SPARK_PATIENCE_S)
        for _ in range(INTERVALS + 3):
            self._interval(set())
        assert self._producer.flush(SPARK_PATIENCE_S) == 0

    def _interval(self, throttled: set[str]) -> None:
        for place, client in enumerate(CLIENTS):
            record = event(self._next + place / len(CLIENTS), client, throttled=client in throttled)
            self._producer.produce(TOPIC, written(completed(record)))
            self._count(client, throttled=client in throttled)
        self._producer.poll(0)
        self._next += 1

    def _count(self, client: str, *, throttled: bool) -> None:
        differs = throttled != self._raised[client]
        self._row[client] = self._row[client] + 1 if differs else 0
        if self._row[client] == INTERVALS:
            self._raised[client], self._row[client] = throttled, 0
            ends_us = (START_S + self._next + 1) * 1_000_000
            self.due.append(Due(client, "raised" if throttled else "cleared", ends_us))


def event(seconds: float, client: str, *, throttled: bool) -> Event:
    """A request that a quota checked, and throttled if ``throttled`` is set."""
    quota_check = check("", client, rate=1.0, bound=1e9, throttle_ms=40 if throttled else 0)
    return request(seconds, "", client, produce=quota_check, throttle_ms=quota_check["throttle_ms"])


class KillScenario:
    """A broker and its watch, with another watch on standby."""

    def __init__(self, folder: Path) -> None:
        self.broker: RunningBroker = start_minibroker()
        self.config = {"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 0}
        admin = AdminClient(self.config)
        for made in admin.create_topics([NewTopic(TOPIC, 1), NewTopic(ALERTS, 1)]).values():
            made.result()
        self._consumer = Consumer({**self.config, "group.id": "unused"})
        self._printed, self.checkpoint = folder / "watch.log", folder / "checkpoint"
        self._next = Standby(self._printed)
        self.watch: Standby | None = None

    def begin(self) -> Standby:
        self.watch, self._next = self._next, Standby(self._printed)
        words = ["--from", self.broker.bootstrap_servers, "--checkpoint", str(self.checkpoint)]
        words += ["--alerts-to", ALERTS, "--from-beginning", "--every", "1", "--late", "1"]
        self.watch.run("watch", *words, "--intervals", str(INTERVALS))
        return self.watch

    def alert_count(self) -> int:
        """The number of alerts on the topic."""
        partition = TopicPartition(ALERTS, 0)
        _, end = self._consumer.get_watermark_offsets(partition, timeout=SPARK_PATIENCE_S)
        return int(end)

    def progress(self, moment: str | None) -> object:
        """Changes when the watch progresses; without a moment, when it prints an alert."""
        if moment is None:
            return self.alert_count()
        return {path.name: path.parent for path in self.checkpoint.glob(moment)}

    def evaluated_until_s(self) -> int:
        """End of the last interval that was evaluated, and whose alerts were sent."""
        evaluated = [int(path.stem) for path in self.checkpoint.glob("rules/[0-9]*.json")]
        return max(evaluated, default=0) + 1

    def has_closed_connections(self) -> bool:
        """Whether the broker has closed all connections of killed watches."""
        processors = ask(self.broker, "GET", "/v1/connections")["processors"]
        connected = {each["client_id"] for one in processors for each in one["connections"]}
        return connected <= {TEST_CLIENT, None}

    def end(self) -> None:
        for each in (self.watch, self._next):
            if each is not None:
                each.kill()
        self._consumer.close()
        self.broker.stop()
        self.broker.forget()


@pytest.fixture
def scenario(memory_folder: Path, fresh: Callable[[str], str]) -> Iterator[KillScenario]:
    folder = memory_folder / fresh("watch")
    folder.mkdir()
    made = KillScenario(folder)
    yield made
    made.end()


def test_watch_kills_lose_no_alert_and_no_watch_repeats_one(scenario: KillScenario) -> None:
    print(f"WATCH_SEED={SEED}")
    chance = random.Random(SEED)
    producer = UsageProducer(scenario.broker.bootstrap_servers)
    producer.start()
    ends = time.monotonic() + KILLS_S
    at_kills = [0]
    while len(at_kills) <= KILLS_MIN or time.monotonic() < ends:
        watch = scenario.begin()
        wait_for_progress(
            scenario, watch, chance.choice([*PROGRESS_PATHS, None, None]), chance.randint(1, 3)
        )
        watch.kill(chance.uniform(0, KILL_DELAY_MAX_S))
        wait_until(
            scenario.has_closed_connections,
            "the connections of the killed watch to close",
            within_s=SPARK_PATIENCE_S,
        )
        at_kills.append(scenario.alert_count())
    producer.finish()
    watch = scenario.begin()
    due, last_us = set(producer.due), max(each.time_us for each in producer.due)

    def all_evaluated() -> bool:
        assert not watch.has_ended(), watch.printed()
        return scenario.evaluated_until_s() * 1_000_000 >= last_us

    wait_until(all_evaluated, "all intervals to be evaluated", within_s=SPARK_PATIENCE_S)
    watch.kill()
    found = sent_alerts(scenario)
    again = len(found) - len(set(found))
    print(
        f"killed {len(at_kills) - 1} times with {len(due)} alerts, of which {again} were repeated"
    )
    assert sorted(set(found) ^ due) == []
    for first, end in zip(at_kills, [*at_kills[1:], len(found)], strict=True):
        of_job = found[first:end]
        assert len(of_job) == len(set(of_job)), "one watch sent an alert twice"


def wait_for_progress(
    scenario: KillScenario, watch: Standby, moment: str | None, times: int
) -> None:
    """Wait until the watch has made progress ``times`` times."""
    for _ in range(times):
        before = scenario.progress(moment)

        def has_changed(before: object = before) -> bool:
            assert not watch.has_ended(), watch.printed()
            return scenario.progress(moment) != before

        wait_until(
            has_changed, f"{moment or ALERTS} to change", within_s=SPARK_PATIENCE_S, pause_s=0.002
        )


def sent_alerts(scenario: KillScenario) -> list[Due]:
    """The alerts on the topic; different alerts have different ids."""
    sent = alerts(scenario.config)
    found = [Due(each["client_id"], each["state"], each["time_us"]) for each in sent]
    assert len({each["id"] for each in sent}) == len(set(found))
    return found

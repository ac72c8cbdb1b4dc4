"""Real members of share groups (KIP-932) keep the rules when they are fenced and lose sessions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import ShareConsumer

from minibroker.lab.verdicts.judging import ClientReport, RuleOutcome
from minibroker.lab.verdicts.report import report_text
from minibroker.lab.verdicts.share_group_rules import RULES
from minibroker.testing import MiniBroker
from minibroker.testing.verdicts import judge_client
from system_tests.harness.jars import java_driver
from system_tests.harness.line_process import LineProcess
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker

SETTINGS = {
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.heartbeat.interval.ms": 100,
    "group.share.assignment.interval.ms": 0,
}
ROUND = 5
"""Records that are produced at a time."""


@pytest.fixture(scope="module")
def journaled() -> Iterator[MiniBroker]:
    with MiniBroker(settings=SETTINGS) as broker, broker.journal:
        yield broker


class Sharing:
    """A share group with one member, which accepts records and is disturbed.

    ``accept`` polls, accepts what was polled, and returns how many records that were.
    """

    def __init__(
        self, broker: MiniBroker, topic: str, group: str, accept: Callable[[], int]
    ) -> None:
        self._broker, self._topic, self._group, self._accept = broker, topic, group, accept
        self._numbers = itertools.count()

    def _produce(self, count: int) -> None:
        self._broker.produce(self._topic, [f"v{next(self._numbers)}" for _ in range(count)])

    def read(self) -> None:
        """Produce records, and let the member accept them."""
        self._produce(ROUND)
        accepted = 0

        def has_read() -> bool:
            nonlocal accepted
            accepted += self._accept()
            return accepted >= ROUND

        wait_until(has_read, "the member to read")

    def start(self) -> None:
        """Let the member read the first record: a share group reads new records only."""

        def has_started() -> bool:
            self._produce(1)
            return bool(self._accept())

        wait_until(has_started, "the member to start")

    def disturb(self) -> None:
        """Fence the member, and let its session be unknown."""
        self.start()
        self.read()
        [member] = self._broker.wait_for_group(self._group, "Stable", members=1)["members"]
        with self._broker.faults as faults:
            beats = {"api": "ShareGroupHeartbeat", "group": self._group, "nth": 2}
            self._broker.faults.act("fence_member", group=self._group, member=member["member_id"])
            joined = faults.add("delay", delay_ms=1, **beats)
            wait_until(lambda: (self._accept(), joined.hits)[1], "two heartbeats after the fence")
            self.read()
            lost = faults.add(
                "error",
                api="ShareFetch",
                group=self._group,
                error="SHARE_SESSION_NOT_FOUND",
                first=1,
            )
            wait_until(lambda: (self._accept(), lost.hits)[1], "a session to be unknown")
        self.read()


def assert_kept(broker: MiniBroker, client_id: str) -> None:
    report: ClientReport = judge_client(broker, client_id)
    outcomes = {each.rule.id: each.outcome for each in report.verdicts}
    names = [rule.id for rule in RULES]
    found = {name: outcomes[name] for name in names}
    assert found == dict.fromkeys(names, RuleOutcome.KEPT), report_text(report)


def test_librdkafka_is_not_accused(journaled: MiniBroker, fresh: Callable[[str], str]) -> None:
    topic, group, name = fresh("t"), fresh("s"), fresh("rd")
    journaled.create_topic(topic, partitions=1)
    consumer = ShareConsumer(
        {
            "bootstrap.servers": journaled.bootstrap_servers,
            "group.id": group,
            "client.id": name,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])

    def accept() -> int:
        polled = list(consumer.poll(0.05) or ())
        for message in polled:
            consumer.acknowledge(message)
        if polled:
            consumer.commit_sync(10)
        return len(polled)

    Sharing(journaled, topic, group, accept).disturb()
    consumer.close()
    assert_kept(journaled, name)


@pytest.mark.java
def test_java_is_not_accused(journaled: MiniBroker, fresh: Callable[[str], str]) -> None:
    topic, group = fresh("t"), fresh("s")
    journaled.create_topic(topic, partitions=1)
    command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", java_driver(), "ShareClient"]
    java = LineProcess([*command, journaled.bootstrap_servers, group, topic])

    def accept() -> int:
        values = [word.split("/")[0] for word in java.ask("poll 50").split()]
        if values:
            java.ask("ack ACCEPT " + " ".join(values))
            java.ask("commit")
        return len(values)

    Sharing(journaled, topic, group, accept).disturb()
    java.close()
    assert_kept(journaled, f"consumer-{group}-*")

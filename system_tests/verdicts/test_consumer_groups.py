"""Real members of consumer groups (KIP-848) keep the rules when they are fenced and reassigned."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer

from minibroker.lab.verdicts.judging import ClientReport, RuleOutcome
from minibroker.lab.verdicts.report import report_text
from minibroker.testing import MiniBroker
from minibroker.testing.verdicts import judge_client
from system_tests.harness.jars import kafka_tools
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker

SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.assignment.interval.ms": 0,
}
RULES = (
    "rejoins-after-fence",
    "reports-assignment",
    "commit-ownership",
    "commit-while-joining",
    "committed-position",
    "heartbeats",
)
PARTITIONS = 6


@pytest.fixture(scope="module")
def journaled() -> Iterator[MiniBroker]:
    with MiniBroker(settings=SETTINGS) as broker, broker.journal:
        yield broker


class Group:
    """A group in which a client is fenced, evicted and given other partitions."""

    def __init__(self, broker: MiniBroker, name: str, poll: Callable[[], object]) -> None:
        self.broker, self.name, self.poll = broker, name, poll

    def view(self) -> dict[str, Any]:
        self.poll()
        found: dict[str, Any] = self.broker.control.get("v1", "groups", self.name)
        return found

    def settle(self, members: int) -> dict[str, Any]:
        """Wait until so many members have their targets."""

        def is_settled() -> bool:
            view = self.view()
            return view["state"] == "Stable" and len(view["members"]) == members

        self.poll()
        wait_until(lambda: self._exists() and is_settled(), "the group to settle")
        return self.view()

    def _exists(self) -> bool:
        self.poll()
        groups = self.broker.control.get("v1", "groups")["groups"]
        return self.name in {each["group_id"] for each in groups}

    def settle_at_end(self, client_id: str) -> dict[str, Any]:
        """Wait until two members have their targets and have committed what they have read.

        While it fetches offsets Java's consumer must not be fenced: it throws, and the application
        ends. While it commits librdkafka 2.16 must not be fenced: it commits again and again and
        does not rejoin until its session ends.
        """
        self.settle(2)
        last = self.broker.control.get("v1", "journal", query={"limit": 1})["last"]
        query = {"after": last, "kind": "request", "api": "Fetch", "client_id": client_id}

        def is_at_end() -> bool:
            offsets = self.view()["offsets"]
            fetches = self.broker.control.get("v1", "journal", query=query)["entries"]
            lags = [each["lag"] for each in offsets]
            return bool(fetches) and lags == [0] * PARTITIONS

        wait_until(is_at_end, f"{client_id} to read and commit everything")
        return self.view()

    def disturb(self, topic: str, client_id: str) -> None:
        """Fence, evict and reassign a member; let its commits and fetches of offsets fail."""
        act = self.broker.faults.act
        member = member_of(self.settle_at_end(client_id), client_id)
        act("fence_member", group=self.name, member=member)
        epoch = self.settle_at_end(client_id)["assignment_epoch"]
        act("assign", group=self.name, assignment={member: {topic: [0]}})
        assert self.settle_at_end(client_id)["assignment_epoch"] == epoch + 1
        with self.broker.faults as faults:
            rules = {"api": "ConsumerGroupHeartbeat", "group": self.name, "member": member}
            lost = faults.add("disconnect", at="after", first=1, **rules)
            wait_until(lambda: self.view() and lost.hits == 1, "an answer to be lost")
            # After STALE_MEMBER_EPOCH librdkafka 2.16 would not fetch offsets again.
            loading = faults.add(
                "error",
                api="OffsetFetch",
                group=self.name,
                error="COORDINATOR_LOAD_IN_PROGRESS",
                first=1,
            )
            act("expire_member", group=self.name, member=member)
            wait_until(lambda: self.view() and loading.hits == 1, "a fetch of offsets to fail")
        self.settle_at_end(client_id)


def assert_kept(broker: MiniBroker, client_id: str) -> None:
    report: ClientReport = judge_client(broker, client_id)
    verdicts = {each.rule.id: each.outcome for each in report.verdicts}
    assert not {rule for rule in RULES if verdicts[rule] is RuleOutcome.BROKEN}, report_text(report)
    assert verdicts["rejoins-after-fence"] is RuleOutcome.KEPT
    assert verdicts["reports-assignment"] is RuleOutcome.KEPT


def librdkafka(broker: MiniBroker, group: str, client_id: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": client_id,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 50,
            "log_level": 0,
        }
    )


@pytest.fixture
def fill(journaled: MiniBroker) -> Callable[[str], str]:
    def create(topic: str) -> str:
        journaled.create_topic(topic, partitions=PARTITIONS)
        journaled.produce(topic, [str(each) for each in range(10 * PARTITIONS)])
        return topic

    return create


def member_of(view: dict[str, Any], client_id: str) -> str:
    (found,) = [each["member_id"] for each in view["members"] if each["client_id"] == client_id]
    return str(found)


def test_librdkafka_is_not_accused(
    journaled: MiniBroker, fresh: Callable[[str], str], fill: Callable[[str], str]
) -> None:
    topic, group, names = fill(fresh("t")), fresh("g"), [fresh("a"), fresh("b")]
    consumers = [librdkafka(journaled, group, name) for name in names]
    at = Group(journaled, group, lambda: [each.poll(0.02) for each in consumers])
    for members, each in enumerate(consumers, start=1):
        each.subscribe([topic])
        at.settle(members)
    at.disturb(topic, names[0])
    for each in consumers:
        each.close()
    assert_kept(journaled, names[0])


@pytest.mark.java
def test_java_is_not_accused(
    journaled: MiniBroker, fresh: Callable[[str], str], fill: Callable[[str], str]
) -> None:
    topic, group, name, other = fill(fresh("t")), fresh("g"), fresh("java"), fresh("b")
    consumer = librdkafka(journaled, group, other)
    at = Group(journaled, group, lambda: consumer.poll(0.02))
    consumer.subscribe([topic])
    command: list[str] = [
        *["java", "-Xmx128m", "-cp", kafka_tools()],
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *["--bootstrap-server", journaled.bootstrap_servers, "--topic", topic, "--group", group],
        *["--command-property", "group.protocol=consumer"],
        *["--command-property", f"client.id={name}"],
        *["--command-property", "auto.commit.interval.ms=50"],
        *["--command-property", "auto.offset.reset=earliest"],
    ]
    with ExitStack() as stack:
        java = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        stack.callback(java.kill)
        at.disturb(topic, name)
        java.terminate()
        assert java.wait(60) is not None
    consumer.close()
    assert_kept(journaled, name)

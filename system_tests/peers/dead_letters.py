"""Dead-letter queues of share groups (KIP-1191): what is in them after the same acknowledgements.

Both brokers write them after they have answered, so the records of a queue are compared when there
are enough of them. Their timestamps differ.
"""

from __future__ import annotations

from typing import Any, Final

from minibroker_protocol.compression import Compression
from minibroker_protocol.messages import describe_share_group_offsets as offsets
from minibroker_protocol.messages import share_fetch as fetching
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records
from system_tests.harness.waiting import wait_until
from system_tests.peers.conversation import SendRequest
from system_tests.peers.records import fetch as fetch_log
from system_tests.peers.records import produce
from system_tests.peers.share_groups import acknowledge, beat, fetch
from system_tests.peers.topics import create, topic

ACCEPT, RELEASE, REJECT = (1,), (2,), (3,)
BROKER, TOPIC, GROUP = 4, 2, 32
ENABLED: Final = "errors.deadletterqueue.group.enable"
QUEUE: Final = "errors.deadletterqueue.topic.name"
COPIES: Final = "errors.deadletterqueue.copy.record.enable"
MEMBER: Final[dict[str, Any]] = {"group_id": "dl", "member_id": "d"}


class DeadLetters:
    """A group with a dead-letter queue, and its only member."""

    def __init__(self, ask: SendRequest) -> None:
        self.ask = ask
        self.epoch = 0
        made = ask("made", create(topic("dl", 1)), 7)
        self.topic_id = made.topics[0].topic_id
        self.configure("group", GROUP, "dl", **{"share.auto.offset.reset": "earliest"})
        self.configure("limit", GROUP, "dl", **{"share.delivery.count.limit": "2"})

    def configure(self, name: str, kind: int, resource: str, **configs: str) -> None:
        changed = AlterConfigsResource(
            resource_type=kind,
            resource_name=resource,
            configs=[AlterableConfig(name=key, value=value) for key, value in configs.items()],
        )
        self.ask(f"configured {name}", IncrementalAlterConfigsRequest(resources=[changed]), 1)

    def join(self) -> None:
        """Join, and wait until there is a state."""
        names: dict[str, Any] = {"subscribed_topic_names": ["dl"]}
        epoch = 0

        def is_assigned() -> bool:
            nonlocal epoch
            answer = self._unrecorded(beat("d", epoch, "dl", **names), 1)
            epoch = answer.member_epoch
            assignment = answer.assignment
            return bool(assignment is not None and assignment.topic_partitions)

        wait_until(is_assigned, "an assignment", pause_s=0.2)

    def _unrecorded(self, request: Any, version: int) -> Any:
        answer = self.ask("unrecorded", request, version)
        del self.ask.answers["unrecorded"]
        return answer

    def fetch(self, name: str) -> None:
        """Fetch until there are records."""

        def has_records() -> bool:
            request = fetch(self.topic_id, self.epoch, max_wait_ms=1000, **MEMBER)
            if self.epoch:
                partition = fetching.FetchPartition(partition_index=0)
                request.topics = [
                    fetching.FetchTopic(topic_id=self.topic_id, partitions=[partition])
                ]
            answer = self.ask(name, request, 2)
            self.epoch += 1
            if not any(part.records for each in answer.responses for part in each.partitions):
                del self.ask.answers[name]
                return False
            return True

        wait_until(has_records, f"records: {name}")

    def acknowledge(self, name: str, *acks: tuple[int, int, tuple[int, ...]]) -> None:
        self.ask(name, acknowledge(self.topic_id, self.epoch, *acks, **MEMBER), 2)
        self.epoch += 1

    def letters(self, name: str, queue: str, count: int) -> None:
        """Compare the records of a queue, which must become so many."""

        def read() -> list[Record]:
            answer = self._unrecorded(fetch_log(queue, 0, epoch=-1), 12)
            (data,) = answer.responses[0].partitions
            raw = memoryview(data.records or b"")
            return [
                record._replace(timestamp=0)
                for at, header in iter_batches(raw)
                for record in iter_records(raw[at : at + header.size])
            ]

        wait_until(lambda: len(read()) >= count, f"{count} letters of {queue}", pause_s=0.1)
        self.ask.answers[name] = [repr(record) for record in read()]

    def finished(self, name: str) -> None:
        """Compare the offsets of the group when it has no lag."""
        group = offsets.DescribeShareGroupOffsetsRequestGroup(group_id="dl", topics=None)
        request = offsets.DescribeShareGroupOffsetsRequest(groups=[group])

        def has_no_lag() -> bool:
            answer = self._unrecorded(request, 1)
            return bool(answer.groups[0].topics[0].partitions[0].lag == 0)

        wait_until(has_no_lag, "no lag", pause_s=0.1)
        self.ask(name, request, 1)


def dead_letters(ask: SendRequest) -> None:
    """Records that are rejected, or have reached the limit of deliveries."""
    group = DeadLetters(ask)
    ask("queue made", create(topic("dlq.dl", errors_deadletterqueue_group_enable="true")), 7)
    group.configure("queue", GROUP, "dl", **{QUEUE: "dlq.dl", COPIES: "true"})
    own = (("h", b"1"), ("__dlq.errors.group", b"another"), ("empty", None))
    first = [Record(at, 1, b"k%d" % at, b"v%d" % at, own) for at in range(5)]
    ask("produced", produce("dl", build_batch(first, compression=Compression.GZIP)), 9)
    group.join()
    group.fetch("fetched")
    group.acknowledge(
        "acknowledged", (0, 0, ACCEPT), (1, 1, REJECT), (2, 2, RELEASE), (3, 4, REJECT)
    )
    group.letters("letters of rejected records", "dlq.dl", 3)
    group.fetch("fetched again")
    group.acknowledge("released at the limit", (2, 2, RELEASE))
    group.letters("letter of a released record", "dlq.dl", 4)
    group.finished("finished")
    group.configure("copies", GROUP, "dl", **{COPIES: "false"})
    ask("more", produce("dl", build_batch([Record(0, 1, b"k", b"v", own)])), 9)
    group.fetch("fetched more")
    group.acknowledge("rejected more", (5, 5, REJECT))
    group.letters("letter without the record", "dlq.dl", 5)
    group.configure("disabled", TOPIC, "dlq.dl", **{ENABLED: "false"})
    ask("yet more", produce("dl", build_batch([Record(0, 1, b"k", b"v")])), 9)
    group.fetch("fetched yet more")
    group.acknowledge("rejected without a queue", (6, 6, REJECT))
    group.finished("finished without a queue")
    group.letters("no further letter", "dlq.dl", 5)
    _created(group)


def _created(group: DeadLetters) -> None:
    """A queue that the broker creates."""
    ask = group.ask
    auto = {"errors.deadletterqueue.auto.create.topics.enable": "true"}
    group.configure("broker", BROKER, "", **auto)
    group.configure("new queue", GROUP, "dl", **{QUEUE: "dlq.new"})
    ask("last", produce("dl", build_batch([Record(0, 1, b"k", b"v")])), 9)
    group.fetch("fetched last")
    group.acknowledge("rejected last", (7, 7, REJECT))
    group.finished("finished with a new queue")
    group.letters("letters of the new queue", "dlq.new", 1)
    keys = [ENABLED, "message.timestamp.type"]
    resource = DescribeConfigsResource(
        resource_type=TOPIC, resource_name="dlq.new", configuration_keys=keys
    )
    ask("new queue", DescribeConfigsRequest(resources=[resource]), 4)


CONVERSATIONS: Final = (dead_letters,)

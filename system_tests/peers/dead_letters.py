"""Dead-letter queues of share groups (KIP-1191): what is in them after the same acknowledgements.

Both brokers write them after they have answered, so the records of a queue are compared when there
are enough of them. Their timestamps differ.
"""

from __future__ import annotations

from typing import Final

from minibroker_protocol.compression import Compression
from minibroker_protocol.messages import describe_share_group_offsets as offsets
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records
from system_tests.harness.waiting import wait_until
from system_tests.peers.conversation import SendRequest
from system_tests.peers.records import fetch as fetch_log
from system_tests.peers.records import produce
from system_tests.peers.share_delivery import ACCEPT, GROUP, REJECT, RELEASE, SharingMember
from system_tests.peers.topics import create, topic

BROKER, TOPIC = 4, 2
ENABLED: Final = "errors.deadletterqueue.group.enable"
QUEUE: Final = "errors.deadletterqueue.topic.name"
COPIES: Final = "errors.deadletterqueue.copy.record.enable"


class DeadLetters(SharingMember):
    """The only member of a group, which may have a dead-letter queue."""

    def letters(self, name: str, queue: str, count: int) -> None:
        """Compare the records of a queue, which must become so many."""

        def read() -> list[Record]:
            answer = self.unrecorded(fetch_log(queue, 0, epoch=-1), 12)
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
        wait_until(self.is_finished, "no lag", pause_s=0.1)
        group = offsets.DescribeShareGroupOffsetsRequestGroup(group_id=self.name, topics=None)
        request = offsets.DescribeShareGroupOffsetsRequest(groups=[group])
        self.ask(name, request, 1)


def dead_letters(ask: SendRequest) -> None:
    """Records that are rejected, or have reached the limit of deliveries."""
    group = DeadLetters(ask, "dl", **{"share.delivery.count.limit": "2"})
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

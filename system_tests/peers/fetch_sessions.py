"""Incremental fetch sessions: what responses leave out, the order of partitions, and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from minibroker_protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest
from minibroker_protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.records import build_batch
from system_tests.peers.conversation import SendRequest
from system_tests.peers.records import produce, records
from system_tests.peers.topics import create, topic

TOPIC: Final = "sessions"
WHOLE: Final = 1 << 20
BATCH: Final = build_batch(records(b"a" * 100))


class Session:
    """A session with one broker: sends partitions of one topic, and counts epochs."""

    def __init__(
        self, ask: SendRequest, version: int, name: str = TOPIC, *, label: str = ""
    ) -> None:
        self._ask = ask
        self.version = version
        self.name = name
        self.label = f"{label}, version {version}"
        self.id = 0
        self.epoch = 0
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        self._topic_id = ask(f"id of {name}{self.label}", asked, 12).topics[0].topic_id

    def fetch(
        self,
        label: str,
        offsets: Mapping[int, int] | None = None,
        forgotten: Iterable[int] = (),
        **options: Any,
    ) -> None:
        """Fetch with the next epoch; ``options`` are fields of the request."""
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=options.pop("max_wait_ms", 0),
            min_bytes=options.pop("min_bytes", 0),
            max_bytes=options.pop("max_bytes", WHOLE),
            session_id=options.pop("session_id", self.id),
            session_epoch=options.pop("session_epoch", self.epoch),
            topics=[self._topic(offsets)] if offsets else [],
            forgotten_topics_data=self._forgotten(list(forgotten)),
        )
        version = options.pop("version", self.version)
        response = self._ask(f"{label}{self.label}", request, version)
        assert not options
        if response.error_code == 0 and request.session_epoch == self.epoch:
            self.id, self.epoch = response.session_id, self.epoch + 1

    def _topic(self, offsets: Mapping[int, int]) -> FetchTopic:
        partitions = [
            FetchPartition(
                partition=index,
                current_leader_epoch=-1,
                fetch_offset=offset,
                log_start_offset=-1,
                partition_max_bytes=WHOLE,
            )
            for index, offset in offsets.items()
        ]
        return FetchTopic(topic=self.name, topic_id=self._topic_id, partitions=partitions)

    def _forgotten(self, partitions: list[int]) -> list[ForgottenTopic]:
        if not partitions:
            return []
        topic_id = self._topic_id
        return [ForgottenTopic(topic=self.name, topic_id=topic_id, partitions=partitions)]


def _fill(ask: SendRequest, label: str, *partitions: int) -> None:
    for partition in partitions:
        ask(f"{label} {partition}", produce(TOPIC, BATCH, partition), 9)


def continued(ask: SendRequest) -> None:
    ask("made", create(topic(TOPIC, 4)), 2)
    _fill(ask, "filled", 0, 1)
    for offset, version in enumerate((7, 11, 12, 13, 16, 17)):
        session = Session(ask, version)
        session.fetch("started", dict.fromkeys(range(4), offset))
        session.fetch("not advanced")
        session.fetch("advanced", {0: offset + 1, 1: offset + 1})
        session.fetch("idle")
        session.fetch("idle again", max_wait_ms=20, min_bytes=1)
        _fill(ask, f"grown {version}", 0, 1)
        session.fetch("grown")
        session.fetch("back to the start", {0: 0})
        session.fetch("beyond the end", {0: 99})
        session.fetch("still beyond the end")
        session.fetch("forgotten", forgotten=[0])
        session.fetch("forgotten twice", forgotten=[0, 9])
        session.fetch("back again", {0: offset + 2})


def ordered(ask: SendRequest) -> None:
    ask("made", create(topic(TOPIC, 4)), 2)
    for version in (12, 13):
        session = Session(ask, version)
        _fill(ask, f"filled {version}", 0, 1, 2, 3)
        session.fetch("started", {3: 0, 1: 0, 2: 0, 0: 0}, max_bytes=1)
        for number in range(6):
            session.fetch(f"first of all {number}", max_bytes=1)
        session.fetch("one advanced", {1: 1 if version == 12 else 2}, max_bytes=1)
        session.fetch("one added anew", {0: 0}, forgotten=[3], max_bytes=1)


def rejected(ask: SendRequest) -> None:
    ask("made", create(topic(TOPIC, 4)), 2)
    for version, other in ((12, 13), (13, 12)):
        session = Session(ask, version)
        session.fetch("started", {0: 0, 7: 0})
        for epoch in (0x7FFFFFFF, 2, 3, -2):
            session.fetch(f"epoch {epoch}", session_epoch=epoch)
        session.fetch("another session", session_id=session.id ^ 1)
        session.fetch("no session", session_id=0)
        session.fetch("the other kind of topics", version=other)
        session.fetch("unknown partition again")
        session.fetch("out of range", {1: 50})
        session.fetch("repeated epoch", session_epoch=1)
        session.fetch("all forgotten", forgotten=[0, 1, 7])
        session.fetch("gone")
        session.epoch = session.id = 0
        session.fetch("started again", {0: 0})
        session.fetch("closed", {0: 0}, session_epoch=-1)
        session.fetch("closed before")
        session.epoch = session.id = 0
        session.fetch("without partitions")
        session.fetch("still without partitions")


def changed(ask: SendRequest) -> None:
    ask("made", create(topic("changing", 2)), 2)
    sessions = [Session(ask, version, "changing") for version in (12, 13)]
    for session in sessions:
        session.fetch("started", {0: 0, 1: 0})
        session.fetch("idle")
    ask("filled", produce("changing", BATCH, 0), 9)
    for session in sessions:
        session.fetch("grown")
        session.fetch("advanced", {0: 1})
    part = DeleteRecordsPartition(partition_index=0, offset=1)
    deleted = DeleteRecordsTopic(name="changing", partitions=[part])
    ask("records deleted", DeleteRecordsRequest(topics=[deleted], timeout_ms=5000), 1)
    for session in sessions:
        session.fetch("log start moved")
        session.fetch("log start known")
    ask("deleted", DeleteTopicsRequest(topic_names=["changing"], timeout_ms=5000), 4)
    for session in sessions:
        session.fetch("topic deleted")
        session.fetch("topic still deleted")


def recreated(ask: SendRequest) -> None:
    for version in (12, 13, 17):
        ask(f"made {version}", create(topic("recreated", 1)), 2)
        labels = (" (new session)", " (idle session)")
        sessions = [Session(ask, version, "recreated", label=each) for each in labels]
        for session in sessions:
            session.fetch("started", {0: 0})
        sessions[1].fetch("idle")
        deletion = DeleteTopicsRequest(topic_names=["recreated"], timeout_ms=5000)
        ask(f"deleted {version}", deletion, 4)
        for session in sessions:
            session.fetch("topic deleted")
            session.fetch("topic still deleted")
        ask(f"made again {version}", create(topic("recreated", 1)), 2)
        for session in sessions:
            session.fetch("topic made again")
            session.fetch("topic made again, once more")
            session.fetch("topic added again", {0: 0})
        ask(f"deleted again {version}", deletion, 4)


CONVERSATIONS: Final = (continued, ordered, rejected, changed, recreated)

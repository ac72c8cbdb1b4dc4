"""The requests that roles send each other.

Owns the shapes of all messages between processes. It must never know how they are handled.
Invariant: plain data that can be pickled, and every request is answered exactly once. ``ApiPart``
and ``ApiReply`` carry the parts of client requests; the others introduce roles to each other and
keep their images up to date. The controller also sends every ``Update`` of the image, which is
answered with None when it is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from minibroker_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from minibroker.broker.metadata.image import Image


class RegisterRole(NamedTuple):
    """The first request on every link: the role that connects.

    The controller answers ``RoleRegistered``.

    An I/O worker answers a processor when it has dropped all requests of the processor's previous
    incarnation: until then the new one must not write to the shared memory that they refer to.
    """

    role: str
    number: int
    incarnation: int


class RoleRegistered(NamedTuple):
    """The controller's answer: the current image. Later changes follow in order."""

    image: Image
    further: tuple[object, ...] = ()
    """Requests that the role has to handle before it applies the image."""


class ImageApplied(NamedTuple):
    """The role has applied the image of ``RoleRegistered``. Answered with None."""


class ActionRequest(NamedTuple):
    """An action for the worker that owns what it changes. Answered with ``ActionReply``.

    ``action`` is one of ``rebalance``, ``assign``, ``expire_member`` and ``fence_member`` for a
    group, ``expire_transaction``, ``roll`` and ``retain`` for the logs of a topic, and
    ``expire_acquisition`` and ``set_delivery_count`` for records of a share group in a topic.
    """

    action: str
    group: str | None = None
    member: str | None = None
    assignment: Mapping[str, Any] | None = None
    """Partitions by topic and member id."""
    transactional_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    """By default all of the topic."""
    first_offset: int = 0
    last_offset: int = 2**63 - 1
    delivery_count: int = 0


class ActionReply(NamedTuple):
    """What an action has done at a worker, or why nothing."""

    error: ErrorCode = ErrorCode.NONE
    text: str = ""
    affected: int = 0


class ApiPart(NamedTuple):
    """One owner's part of a client request. Answered with ``ApiReply``."""

    api_key: int
    part: Any


class ApiReply(NamedTuple):
    """The result of ``execute``, its work, and how long it waited, e.g. for records."""

    reply: Any
    worked_ns: int
    waited_ns: int = 0


class ClockAdvanced(NamedTuple):
    """The clock was changed, so deadlines must be checked again. Answered with None."""


class MetricsRequest(NamedTuple):
    """Request for the metrics of a process. Answered with a ``Snapshot``."""


class ConditionsRequest(NamedTuple):
    """Request for the conditions that degrade a process. Answered with a tuple of ``Condition``."""


class DetailsRequest(NamedTuple):
    """Request for the details that a role reports in addition to its metrics."""


class LogsRequest(NamedTuple):
    """Request for the partitions of a topic that an I/O worker owns.

    Answered with ``{partition: LogView}``.
    """

    topic: str


class PartitionLogsRequest(NamedTuple):
    """Request for those of some partitions that an I/O worker owns.

    Answered with ``{(topic, partition): LogView}``.
    """

    partitions: tuple[tuple[str, int], ...]


class CompactRequest(NamedTuple):
    """Request to compact the partitions of a topic that an I/O worker owns, as far as possible now.

    Answered when that is done, with what failed or an empty text.
    """

    topic: str


class LogView(NamedTuple):
    """Bounds and size (bytes) of one partition's log."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int


class PauseRequests(NamedTuple):
    """Request to a processor to execute no request of a client until ``ResumeRequests``, and to an
    I/O worker to send no markers. Answered when none is being executed or sent.

    With ``disconnect`` a processor closes the connections with a request in flight.
    """

    disconnect: bool = False


class ResumeRequests(NamedTuple):
    """The end of ``PauseRequests``. Answered with None."""


class SaveLogs(NamedTuple):
    """Request to an I/O worker to save its logs below a directory.

    Answered with ``storage.manager.SavedLogs``, or a text if that failed.
    """

    snapshot: str
    directory: str


class RestoreLogs(NamedTuple):
    """Request to an I/O worker to return to the logs that were saved below a directory.

    Answered with a text if that failed, otherwise an empty one.
    """

    snapshot: str
    directory: str


class DeleteGroups(NamedTuple):
    """Request to an I/O worker to delete the groups whose ids have a prefix, even with members.

    Answered with None.
    """

    prefix: str


class GroupsRequest(NamedTuple):
    """Request for the groups of an I/O worker, or for the details of one group."""

    group_id: str | None = None


class SharePartitionsRequest(NamedTuple):
    """Request for the share partitions of a group that an I/O worker has in use."""

    group_id: str


class CommittedOffsetsRequest(NamedTuple):
    """Request for the committed offsets of an I/O worker's groups, as far as they are at most
    ``offsets_max``.

    Answered with ``{group_id: {(topic, partition): offset}}``.
    """

    offsets_max: int


class ProducerIdsRequest(NamedTuple):
    """Request for a block of producer ids. Answered with ``(first, count)``, or None if the config
    store cannot be written now.
    """


class QueueCreation(NamedTuple):
    """Request to create a dead-letter queue. Answered with ``ChangeRejected``, or None."""

    topic: str
    config: tuple[tuple[str, str], ...]


class ActivityAppend(NamedTuple):
    """Request to append a batch of the broker itself to a partition. Answered with the reason of a
    failure, or an empty string. A batch that is already in the log is not appended again.
    """

    topic: str
    partition: int
    batch: bytes


class TailRequest(NamedTuple):
    """Request for the last batch of a partition. Answered with its bytes, which are empty if the
    partition is.
    """

    topic: str
    partition: int


class RecordsAppend(NamedTuple):
    """Request to append a batch that the control API, or a worker for a dead-letter queue, has
    built. Answered with ``BatchAppended``.
    """

    topic: str
    partition: int
    batch: bytes


class BatchAppended(NamedTuple):
    """The offset of a batch's first record, or why it was not appended."""

    error: ErrorCode = ErrorCode.NONE
    text: str = ""
    base_offset: int = -1


class RecordsRead(NamedTuple):
    """Request for records of a topic, from an offset of each partition on, at an I/O worker.

    Answered with ``{partition: ReadRecords}``. The first partition with records yields at least one
    batch, and all together at most ``max_bytes`` otherwise. With ``committed``, records end at the
    last stable offset.
    """

    topic: str
    offsets: Mapping[int, int]
    max_bytes: int
    committed: bool


class ReadRecords(NamedTuple):
    """Whole batches of one partition.

    ``end`` is the offset after the last record that can be read. ``aborted`` has the producer id,
    the first offset and the marker's offset of each aborted transaction in the batches.
    """

    offset: int
    batches: bytes
    end: int
    aborted: tuple[tuple[int, int, int], ...] = ()


class ActivityBatch(NamedTuple):
    """A chunk of events (``activity.events``) for the recorder, and how many events the process has
    dropped since the last chunk. Not a request: ``ActivityWritten`` is sent later, on its own.
    """

    chunk: bytes
    dropped: int


class ActivityWritten(NamedTuple):
    """The recorder's receipt: the number of events that are written, and the number of drops that
    are recorded in the topic.
    """

    events: int
    dropped: int

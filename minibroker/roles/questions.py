"""The questions that roles ask each other: the whole vocabulary between processes.

Owns shapes only. Invariant: plain picklable data, answered exactly once. An API's parts and
replies travel in ``ApiPart`` and its answer; the rest is how roles get to know each other and how
the controller keeps them in step. Beside these the controller sends every ``Update`` of the image,
answered with None when it has been taken over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from minibroker.cluster.image import Image


class Greeting(NamedTuple):
    """The first question on every link: who dials. The controller answers with ``Welcome``.

    An I/O worker answers a processor when nothing of that processor's former life is left: only
    then may the new life write to the shared memory that the former one may have referred to.
    """

    role: str
    number: int
    incarnation: int


class Welcome(NamedTuple):
    """The controller's answer: the image as it is; changes after it follow in order."""

    image: Image


class ImageTaken(NamedTuple):
    """Tells the controller that its ``Welcome`` holds from now on; answered with None."""


class ApiPart(NamedTuple):
    """One owner's part of a request, answered with ``ApiReply``."""

    api_key: int
    part: Any


class ApiReply(NamedTuple):
    """What ``execute`` returned and the nanoseconds that it worked."""

    reply: Any
    worked_ns: int


class ClockTurned(NamedTuple):
    """The clock has been turned: look at deadlines again. Answered with None."""


class MetricsWanted(NamedTuple):
    """Asks a process for its counts, answered with a ``Snapshot``."""


class ConditionsWanted(NamedTuple):
    """Asks a process what is wrong with it, answered with a tuple of ``Condition``."""


class DetailsWanted(NamedTuple):
    """Asks a role for what it has to show beside counts, answered with that."""


class LogsWanted(NamedTuple):
    """Asks an I/O worker about the partitions of a topic that it owns.

    Answered with ``{partition: LogView}``.
    """

    topic: str


class LogView(NamedTuple):
    """Bounds and size (bytes) of one partition's log."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int


class GroupsWanted(NamedTuple):
    """Asks an I/O worker for its groups; for one whole when ``group_id`` is given."""

    group_id: str | None = None


class ProducerIdsWanted(NamedTuple):
    """Asks the controller for a block of producer ids: ``(first, count)``, or None if the config
    store cannot be written now.
    """


class Append(NamedTuple):
    """Asks an I/O worker to append a batch of the broker's own to a partition, answered with the
    reason why not, empty if it did. What was appended already is not appended again.
    """

    topic: str
    partition: int
    batch: bytes


class TailWanted(NamedTuple):
    """Asks an I/O worker for the last batch of a partition, answered with its bytes; with none if
    the partition is empty.
    """

    topic: str
    partition: int


class Told(NamedTuple):
    """What a process tells the recorder: a chunk of events (``activity.events``), and how many it
    dropped since the last. This and ``Written`` are no questions, but travel by themselves.
    """

    chunk: bytes
    dropped: int


class Written(NamedTuple):
    """The recorder's receipt: so many events of those it was told are written, and so many drops
    are told to whoever reads them.
    """

    events: int
    dropped: int

"""Records for the journal in the control API.

Owns what a client may ask of the journal and what it gets. It must never know how entries are
collected. Invariant: one set of conditions selects entries everywhere, as texts of a query or as
JSON. Kafka has no equivalent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Final, Literal, NamedTuple, Protocol, TypeAlias

from minibroker.lab.control.schema import Doc, Length, Range

TEXT_MAX: Final = 1024
"""Characters of a text."""

ENTRIES_MAX: Final = 10_000
"""Entries in one answer."""

ENTRIES: Final = 1000
"""Entries in one answer by default."""

WAIT_MS_MAX: Final = 600_000
STEPS_MAX: Final = 100
"""Entries in one order that an assertion may name."""

BYTES_MIN: Final = 1024 * 1024
BYTES_MAX: Final = 4 * 1024**3
NUMBER_MAX: Final = 2**53
"""The largest whole number that every JSON library keeps."""

EntryKindName: TypeAlias = Literal[
    "connection_opened",
    "connection_closed",
    "connection_rejected",
    "request",
    "response",
    "fault",
    "clock",
    "state",
    "lost",
]


class EntryView(NamedTuple):
    """One entry of the journal."""

    sequence: Annotated[
        int,
        Doc(
            "Position in the order of all entries, lost ones too, from 1; of the kind `lost`, that "
            "of the last entry that it represents."
        ),
    ]
    clock_ms: Annotated[float, Doc("Milliseconds since 1970 of the broker's clock.")]
    kind: EntryKindName
    role: Annotated[str, Doc("The process of the broker, e.g. `processor-0`.")]
    connection: Annotated[str | None, Doc("Number of the connection, as in `/v1/connections`.")]
    client_id: str | None
    address: Annotated[str | None, Doc("Host and port of the client.")]
    api: Annotated[str | None, Doc("Kafka's name of the API, e.g. `Produce`.")]
    version: Annotated[int | None, Doc("Version of the request.")]
    correlation_id: int | None
    throttle_time_ms: Annotated[int | None, Doc("Throttle time of a response.")]
    stages: Annotated[
        Mapping[str, float],
        Doc(
            "Milliseconds of a request until its response was sent: `queue` in the queues of other "
            "processes, `execution` there, `network` the processor's work, `send` until the "
            "response was sent, and `total`, which includes waiting."
        ),
    ]
    frame_bytes: Annotated[int, Doc("Size of the frame without its size field.")]
    frame: Annotated[
        str | None,
        Doc(
            "The frame in base64, if the query has `frames=true`, the frame has at most 64 KiB and "
            "cannot contain secrets."
        ),
    ]
    details: Annotated[
        Mapping[str, object],
        Doc(
            "`reason` and `text` of a closed connection; `rule` and `action` of a fault; `from` "
            "and `to` of the clock in ms; `what`, `name`, `from` and `to` of a state; of a loss, "
            "`entries` that happened between `since_ms` and its time and that the journal does not "
            "have, and as `reason` `process_ended`, `process_memory` or `journal_memory`."
        ),
    ]
    body: Annotated[
        Mapping[str, object] | None,
        Doc("Fields of the request or response, if the query has `decode=true`."),
    ]


class EntryQuery(NamedTuple):
    """Which entries are wanted, as texts of a query; all conditions must hold. Entries of the kind
    `lost` are among the answers of every query that one of the lost entries could have matched.
    """

    kind: Annotated[str, Doc("Kinds, separated by commas.")] = ""
    api: Annotated[str, Doc("API by name or key.")] = ""
    client_id: Annotated[str, Doc("Client id; `*` matches any text.")] = ""
    connection: Annotated[str, Doc("Number of the connection.")] = ""
    role: Annotated[str, Doc("A process of the broker.")] = ""
    topic: Annotated[str, Doc("Topic named in the frame, or whose state changed.")] = ""
    group: Annotated[str, Doc("Group named in the frame, or whose state changed.")] = ""
    error: Annotated[str, Doc("Kafka's error in a response, by name or code.")] = ""
    after: Annotated[str, Doc("Only entries with a greater sequence.")] = "0"
    limit: Annotated[str, Doc(f"Number of entries at most; by default {ENTRIES}.")] = str(ENTRIES)
    wait_ms: Annotated[str, Doc("Real milliseconds to wait until an entry matches.")] = "0"
    frames: Annotated[str, Doc("`true`: with frames in base64.")] = "false"
    decode: Annotated[str, Doc("`true`: with decoded bodies.")] = "false"


class JournalPage(NamedTuple):
    """Entries of the journal, oldest first."""

    entries: tuple[EntryView, ...]
    last: Annotated[int, Doc("Sequence of the newest entry, also if it does not match.")]
    dropped: Annotated[int, Doc("Number of lost entries since the journal was cleared.")]
    pending: Annotated[
        int, Doc("Number of entries of processes that do not respond, which may follow later.")
    ]
    has_more: Annotated[bool, Doc("Whether further entries match now.")]


class JournalChange(NamedTuple):
    """A change of the journal."""

    enabled: Annotated[bool | None, Doc("Record from now on, or stop.")] = None
    bytes_max: Annotated[
        int | None, Range(BYTES_MIN, BYTES_MAX), Doc("Memory for entries in bytes.")
    ] = None


class JournalView(NamedTuple):
    """The journal."""

    enabled: Annotated[bool, Doc("Whether the broker records.")]
    entries: Annotated[int, Doc("Number of entries.")]
    last: Annotated[int, Doc("Sequence of the newest entry; 0 if there was none.")]
    dropped: Annotated[int, Doc("Number of lost entries since the journal was cleared.")]
    pending: Annotated[
        int, Doc("Number of entries of processes that do not respond, which may follow later.")
    ]
    bytes: Annotated[int, Doc("Memory of the entries in bytes.")]
    bytes_max: Annotated[int, Doc("The memory above which the oldest entries are dropped.")]


class EntryConditions(NamedTuple):
    """Which entries are meant; all conditions must hold."""

    kind: EntryKindName | None = None
    api: Annotated[str | None, Length(1, 64), Doc("API by name or key.")] = None
    client_id: Annotated[
        str | None, Length(0, TEXT_MAX), Doc("Client id; `*` matches any text.")
    ] = None
    connection: Annotated[str | None, Length(1, 32), Doc("Number of the connection.")] = None
    role: Annotated[str | None, Length(1, 64), Doc("A process of the broker.")] = None
    topic: Annotated[
        str | None, Length(1, TEXT_MAX), Doc("Topic named in the frame, or whose state changed.")
    ] = None
    group: Annotated[
        str | None, Length(0, TEXT_MAX), Doc("Group named in the frame, or whose state changed.")
    ] = None
    error: Annotated[
        str | None, Length(1, 64), Doc("Kafka's error in a response, by name or code.")
    ] = None
    details: Annotated[
        Mapping[str, object] | None,
        Length(0, 100),
        Doc('Values of the details, e.g. `{"to": "Stable"}`.'),
    ] = None


class JournalAssertion(NamedTuple):
    """An assertion over the journal: one of `happened`, `in_order` and `absent`."""

    happened: Annotated[
        EntryConditions | None, Doc("At least `times` entries match these conditions.")
    ] = None
    in_order: Annotated[
        tuple[EntryConditions, ...] | None,
        Length(1, STEPS_MAX),
        Doc("An entry matches each of these conditions, each after the one before."),
    ] = None
    absent: Annotated[
        EntryConditions | None, Doc("No entry matches, or none before `before_ms`.")
    ] = None
    times: Annotated[int, Range(1, NUMBER_MAX), Doc("For `happened`.")] = 1
    before_ms: Annotated[
        float | None,
        Range(0, NUMBER_MAX),
        Doc("For `absent`: milliseconds since 1970 of the broker's clock."),
    ] = None
    after: Annotated[int, Range(0, NUMBER_MAX), Doc("Only entries with a greater sequence.")] = 0
    wait_ms: Annotated[
        int,
        Range(0, WAIT_MS_MAX),
        Doc("Real milliseconds to wait until `happened` or `in_order` holds."),
    ] = 0


class AssertionView(NamedTuple):
    """The result of an assertion."""

    holds: bool
    text: Annotated[str, Doc("Why.")]
    entries: Annotated[tuple[EntryView, ...], Doc("Entries that show it, the oldest 100.")]
    last: Annotated[int, Doc("Sequence of the newest entry that was considered.")]


class FrameView(NamedTuple):
    """A dissected frame."""

    text: Annotated[str, Doc("What each byte means, line by line.")]


SendLine: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Sends bytes of a response that has no end."""


class JournalBackend(Protocol):
    """The journal of a running broker. Every method can raise ``BackendError``."""

    async def view(self) -> JournalView:
        """Return the state of the journal."""

    async def change(self, change: JournalChange) -> JournalView:
        """Switch the journal on or off in all processes, or change its memory."""

    async def clear(self) -> None:
        """Drop all entries."""

    async def find(self, query: EntryQuery) -> JournalPage:
        """Return matching entries; wait until there is one, for real time at most."""

    async def check(self, assertion: JournalAssertion) -> AssertionView:
        """Check an assertion; wait until it holds, for real time at most."""

    async def dissect(self, sequence: int) -> FrameView:
        """Return what the bytes of a frame mean; raise ``NotFound`` if it is not kept."""

    async def stream(self, query: EntryQuery, send: SendLine) -> None:
        """Send matching entries as lines of JSON until cancelled."""


class JournaledBackend(Protocol):
    """A running broker that keeps a journal."""

    @property
    def journal(self) -> JournalBackend:
        """Return the journal."""

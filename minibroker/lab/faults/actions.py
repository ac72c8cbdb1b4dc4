"""The actions of fault rules: one class for each, with all that is special about it.

Owns the fields of each action with their meaning, where it can happen, what it needs to have an
effect, and what it does to a response, to a request and to the broker. It must never know which
rules match or fire, nor a socket: what waits and disconnects is passed in. Invariant: an action is
a class of this file; the validation, the reference page, the OpenAPI description and the help of
the commands follow from it. Only failed appends are carried out elsewhere, in the process that owns
the logs. Kafka has no equivalent; Trogdor's ``TaskSpec`` describes faults of whole nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
)

from minibroker.lab.faults.damage import (
    RECORD_PARTS,
    CorruptPart,
    add_tagged_field,
    damage_frame,
    damage_records,
)
from minibroker.lab.faults.message_fields import (
    can_encode,
    can_patch,
    element_faults,
    field_versions,
    owner_of,
    response_faults,
    set_fields,
)
from minibroker.lab.faults.places import (
    AFTER,
    BEFORE,
    CLIENT_FIELDS,
    CONNECTION_FIELDS,
    MIDDLE,
    POINTS,
    SELECTORS,
    FaultPlace,
    FaultPoint,
)
from minibroker.lab.schema import Doc, Fault, Length, Range, did_you_mean
from minibroker_protocol import registry
from minibroker_protocol.entities import element_of, fields_of, is_entity_array
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.registry import ApiKey, ApiSchema
from minibroker_protocol.schema import HIGHEST_VERSION, NO_VERSIONS, Struct, Versions

if TYPE_CHECKING:
    from minibroker_protocol.messages.fetch import PartitionData

TIME_MS_MAX: Final = 7 * 24 * 3600 * 1000
PAUSE_MS_MAX: Final = 60_000
INT32_MAX: Final = 2**31 - 1

# Actions ------------------------------------------------------------------------------------------

ACTIONS: Final[dict[str, type[Action]]] = {}
"""All actions by name, in the order of this file."""

LoadRecords: TypeAlias = Callable[[Any], bytes]
"""Returns the bytes of records."""

_Frame: TypeAlias = bytes
"""A response with its length. Some actions have a field ``bytes``."""


class ChangedResponse(NamedTuple):
    """A copy of a response that an action may change, and what its rule is about."""

    message: Any
    api_key: int
    version: int
    partitions: Callable[[], Iterator[PartitionData]]
    """Of the response to a fetch: the partitions with records that the rule matches."""
    load: LoadRecords
    fail: Callable[[], Any]
    """Returns the response with the error of the rule."""
    elements: Callable[[], Iterator[Sequence[Struct]]]
    """What the rule matches in the response: each with the structs around it, from the outside."""


class StoppedRequest(Protocol):
    """A request at a place where a rule acts on it. Its end raises ``InterceptorDisconnect``."""

    @property
    def delays_throttled(self) -> bool:
        """Whether throttled responses are late, as before Kafka 2.0."""

    @property
    def chances(self) -> tuple[float, float]:
        """Numbers from 0 to below 1 that depend only on the seed of the rule and on the match."""

    async def sleep(self, duration_ms: float, *, adds: bool = False) -> None:
        """Sleep until a time after the rule has fired, or after the sleeps of the rules before."""

    async def hold(self) -> None:
        """Wait until the rule is released, unless this is the second match of a pair."""

    async def act(self) -> None:
        """Let the controller carry out the rule."""

    def disconnect(self, *, resets: bool) -> None:
        """Close the connection, with a TCP reset or without."""

    async def fall_silent(self) -> None:
        """Read requests and answer none until the client disconnects."""


class ControlledProcesses(Protocol):
    """The broker, as actions of the controller change it."""

    async def kill(self, process: str, reason: str) -> None:
        """Kill a process."""

    async def pause(self, process: str, duration_ms: int) -> None:
        """Stop a process for some real time."""

    async def advance_clock(self, duration_ms: int) -> None:
        """Advance the clock of all processes."""

    def overtaken(self, rule_id: str) -> None:
        """Release the first match of a pair."""


class Action:
    """What a rule does. The docstring of a subclass is its summary for users."""

    name: ClassVar[str]
    places: ClassVar[tuple[FaultPlace, ...]] = ()
    """Where it can happen; the first one is the default."""
    selectors: ClassVar[tuple[str, ...]] = SELECTORS
    matches: ClassVar[Literal["requests", "appends", "new connections", "open connections"]] = (
        "requests"
    )
    is_final: ClassVar[bool] = False
    """Whether it decides about the response, so that later rules do not fire for the same."""
    ends_request: ClassVar[bool] = False
    """Whether the request gets no response after it."""
    needs_response: ClassVar[bool] = False
    """Whether it has no effect without a response."""
    replaces_response: ClassVar[bool] = False
    """Whether it changes more of a response than its throttle time."""
    matches_response: ClassVar[bool] = False
    """Whether it matches entities that only the response names."""
    counts_on_arrival: ClassVar[bool] = False
    """Whether it counts requests as they arrive, at any place."""
    acts_on_broker: ClassVar[bool] = False
    """Whether the controller carries it out while the request waits."""
    at: FaultPlace | None = None

    def __init_subclass__(cls, name: str = "") -> None:
        """A class without a name has what several actions share."""
        if name:
            cls.name = name
            ACTIONS[name] = cls

    @property
    def is_random(self) -> bool:
        """Whether the seed of a rule has an effect on it."""
        return False

    @property
    def place(self) -> str:
        """Where in the course of a request it happens."""
        return self.at or (self.places[0] if self.places else AFTER)

    # Which rules make sense ---------------------------------------------------------------------

    def faults(self, given: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield what is wrong in its fields; ``given`` are all fields of the rule as JSON."""
        del given
        if self.at is not None and self.at not in self.places:
            yield Fault("at", f"must be {' or '.join(self.places)} for the action {self.name}")

    api_reason: ClassVar[str] = ""
    """Why a rule must select an API."""

    def api_faults(self, schema: ApiSchema, low: int, high: int) -> Iterator[Fault]:
        """Yield what is wrong in its fields for an API in these versions."""
        del schema, low, high
        yield from ()

    def effect_fault(self, schema: ApiSchema, version: int) -> Fault | None:
        """Say why it would leave each response of a version as it is, and delay nothing."""
        del schema, version
        return None

    # What it does to a response -----------------------------------------------------------------

    @property
    def claims(self) -> bool:
        """Whether a rule claims what it matches when it fires."""
        return self.is_final

    def acts_without_response(self, *, has_response: bool) -> bool:
        """Whether it has an effect if there is no response; ``has_response`` if there may be."""
        del has_response
        return False

    @property
    def changes_fields(self) -> bool:
        """Whether it changes fields of a response, instead of how its bytes are sent."""
        return False

    @property
    def mutes(self) -> bool:
        """Whether it mutes the connection, also if the response stays as it is."""
        return False

    def change(self, response: ChangedResponse) -> Any:
        return response.message

    def damage(self, frame: _Frame) -> _Frame:
        """Return a response with its length as it is sent."""
        return frame

    # What it does to a request and to the broker ------------------------------------------------

    async def stop(self, request: StoppedRequest) -> None:
        """Act on a request at its place."""

    async def act(self, broker: ControlledProcesses, rule_id: str) -> None:
        """Act on the broker, in the controller."""


At: TypeAlias = Annotated[
    FaultPlace | None,
    Doc(
        "`before` the request is executed, `after` it and before the response, or in the `middle` "
        "of the response."
    ),
]
_Bytes: TypeAlias = Annotated[
    int | None,
    Range(0, INT32_MAX),
    Doc(
        "Bytes of the response: sent before a disconnect, cut by `truncate`, or the position of "
        "the changed `bit`; or of a batch that reach the file."
    ),
]
_Process: TypeAlias = Annotated[
    str, Length(1, 64), Doc("A process of the broker as in `/v1/health`.")
]
_PauseMs: TypeAlias = Annotated[
    int,
    Range(1, PAUSE_MS_MAX),
    Doc("How long a process stops or an append waits, in real time."),
]


@dataclass
class Error(Action, name="error"):
    """Answers with an error code. The matching entities of a request fail and the others are
    served; `after` the work is done and its acknowledgement is lost. If only the response names
    what a rule selects, e.g. a partition in Metadata, the error is put into the response.
    """

    error: Annotated[
        str, Length(1, 64), Doc("Kafka's error by name or code, e.g. `NOT_COORDINATOR`.")
    ]
    whole: Annotated[
        bool | None,
        Doc("Put the error at the top of the response, instead of into its matching entries."),
    ] = None
    at: At = None

    places = (BEFORE, AFTER)
    is_final = needs_response = replaces_response = True
    changes_fields = matches_response = True

    @property
    def code(self) -> int:
        code = error_of(self.error)
        assert code is not None
        return code

    def faults(self, given: Mapping[str, Any]) -> Iterator[Fault]:
        yield from super().faults(given)
        if error_of(self.error) is None:
            advice = nearest(self.error, ErrorCode)
            yield Fault("error", f"there is no error {self.error!r}{advice}")

    def effect_fault(self, schema: ApiSchema, version: int) -> Fault | None:
        if _has_error(schema.response, version):
            return None
        advice = "use disconnect or never_answer"
        return Fault("api", f"responses of {schema.key.name} have no error code; {advice}")

    def acts_without_response(self, *, has_response: bool) -> bool:
        """The connection is closed instead."""
        return not has_response and self.code != ErrorCode.NONE

    def change(self, response: ChangedResponse) -> Any:
        return response.fail()


@cache
def _has_error(cls: type[Struct], version: int) -> bool:
    fields = fields_of(cls, version)
    return any(item.means is Meaning.ERROR for item, _ in fields) or any(
        is_entity_array(item) and _has_error(element_of(item), version) for item, _ in fields
    )


@dataclass
class Delay(Action, name="delay"):
    """Delays the response, or the execution, on the broker's clock: of several the longest counts,
    unless they add up. A random part depends on `seed` only.
    """

    delay_ms: Annotated[
        int, Range(1, TIME_MS_MAX), Doc("Delay after the rule fires, on the broker's clock.")
    ]
    jitter_ms: Annotated[
        int | None, Range(1, TIME_MS_MAX), Doc("Random time: how much depends on `distribution`.")
    ] = None
    distribution: Annotated[
        Literal["uniform", "exponential", "normal"] | None,
        Doc(
            "`uniform`, the default: up to `jitter_ms` is added; `exponential`: `jitter_ms` is "
            "added on average; `normal`: `jitter_ms` is the standard deviation."
        ),
    ] = None
    adds: Annotated[bool | None, Doc("Whether it is added to the delays of the rules before.")] = (
        None
    )
    at: At = None

    places = (AFTER, BEFORE)

    @property
    def is_random(self) -> bool:
        return self.jitter_ms is not None

    def faults(self, given: Mapping[str, Any]) -> Iterator[Fault]:
        yield from super().faults(given)
        if self.distribution is not None and self.jitter_ms is None:
            yield Fault("distribution", "has no effect without jitter_ms")

    def drawn_ms(self, chances: tuple[float, float]) -> float:
        """A delay, with a random part if it has one; never negative, nor longer than a week."""
        drawn = chances[0]
        if self.distribution == "exponential":
            drawn = -math.log(1 - chances[0])
        elif self.distribution == "normal":
            drawn = math.sqrt(-2 * math.log(1 - chances[0])) * math.cos(math.tau * chances[1])
        return min(max(self.delay_ms + (self.jitter_ms or 0) * drawn, 0), TIME_MS_MAX)

    async def stop(self, request: StoppedRequest) -> None:
        await request.sleep(self.drawn_ms(request.chances), adds=bool(self.adds))


@dataclass
class Hold(Action, name="hold"):
    """Holds the request, or what passes a hold point, until the rule is released or removed."""

    point: Annotated[
        FaultPoint | None, Doc("A hold point inside of the broker, instead of a place of requests.")
    ] = None
    at: At = None

    places = (BEFORE, AFTER)

    @property
    def place(self) -> str:
        return super().place if self.point is None else POINTS[self.point].place

    def faults(self, given: Mapping[str, Any]) -> Iterator[Fault]:
        yield from super().faults(given)
        if self.point is None:
            return
        if self.at is not None:
            yield Fault("at", "has no effect at a hold point")
        for name in SELECTORS:
            if name in given and name not in POINTS[self.point].selectors:
                yield Fault(name, f"cannot select at the point {self.point}")

    async def stop(self, request: StoppedRequest) -> None:
        await request.hold()


@dataclass
class Reorder(Action, name="reorder"):
    """Exchanges two matches of different connections: every second one is answered first, and the
    one before it waits for that, with its execution or its response.
    """

    at: At = None

    places = (AFTER, BEFORE)
    counts_on_arrival = True

    async def stop(self, request: StoppedRequest) -> None:
        await request.hold()

    async def act(self, broker: ControlledProcesses, rule_id: str) -> None:
        broker.overtaken(rule_id)


@dataclass
class Disconnect(Action, name="disconnect"):
    """Closes the connection; in the `middle` a part of the response is sent before."""

    bytes: _Bytes = None
    reset: Annotated[
        bool | None, Doc("Disconnect with a TCP reset; by default the connection is closed.")
    ] = None
    at: At = None

    places = (BEFORE, AFTER, MIDDLE)
    is_final = ends_request = True

    def faults(self, given: Mapping[str, Any]) -> Iterator[Fault]:
        yield from super().faults(given)
        if self.bytes is not None and self.at != MIDDLE:
            yield Fault("bytes", "has no effect here")

    async def stop(self, request: StoppedRequest) -> None:
        request.disconnect(resets=bool(self.reset))


@dataclass
class NeverAnswer(Action, name="never_answer"):
    """Sends no response, nor any later one on the connection, which stays open."""

    at: At = None

    places = (BEFORE, AFTER)
    is_final = ends_request = True

    async def stop(self, request: StoppedRequest) -> None:
        await request.fall_silent()


@dataclass
class ThrottleResponse(Action, name="throttle"):
    """Sets the throttle time of the response, and mutes the connection for as long; with
    `quota.throttle.mode=delay`, the default of personas before Kafka 2.0, the response is delayed
    instead.
    """

    throttle_ms: Annotated[int, Range(1, INT32_MAX), Doc("Throttle time of the response.")]
    mute: Annotated[
        bool | None,
        Doc(
            "Whether the connection is muted, or the response delayed, for the throttle time; by "
            "default true."
        ),
    ] = None

    needs_response = True
    changes_fields = True

    @property
    def mutes(self) -> bool:
        return self.mute is not False

    def effect_fault(self, schema: ApiSchema, version: int) -> Fault | None:
        versions, name = registry.throttle_versions(schema.key), schema.key.name
        if versions == NO_VERSIONS:
            advice = "the action delay can delay them"
            return Fault("api", f"responses of {name} have no throttle time; {advice}")
        if self.mutes or versions.has(version):
            return None
        return Fault(
            "mute",
            f"has no effect: responses of {name} have a throttle time {in_versions(versions)}; "
            "select those by version_min, or let the connection be muted",
        )

    def acts_without_response(self, *, has_response: bool) -> bool:
        del has_response
        return self.mutes

    def change(self, response: ChangedResponse) -> Any:
        if registry.throttle_versions(response.api_key).has(response.version):
            response.message.throttle_time_ms = self.throttle_ms
        return response.message

    async def stop(self, request: StoppedRequest) -> None:
        if request.delays_throttled and self.mutes:
            await request.sleep(self.throttle_ms)


@dataclass
class Slow(Action, name="slow"):
    """Sends the response slowly; the broker's clock counts from when the rule fires."""

    bytes_per_s: Annotated[
        int,
        Range(1, INT32_MAX),
        Doc("Bytes of the response a second of the broker's clock."),
    ]

    needs_response = True


@dataclass
class Corrupt(Action, name="corrupt"):
    """Damages the response."""

    part: Annotated[
        CorruptPart,
        Doc(
            "The corrupted part: one `bit`, the `length` or `correlation_id` of the response, or "
            "its end (`truncate`). `tagged_field` adds a tagged field that no client knows to a "
            "response of a flexible version, which is valid. In Fetch responses, of the first "
            "batch of each partition: the `crc`; a bit of the first value (`payload`) or all ids "
            "of Confluent's schema registry (`schema_id`), with a right checksum; `repeat` sends "
            "the batch twice."
        ),
    ]
    bytes: _Bytes = None

    is_final = needs_response = replaces_response = True

    def faults(self, given: Mapping[str, Any]) -> Iterator[Fault]:
        yield from super().faults(given)
        if self.bytes is not None and self.part not in ("bit", "truncate"):
            yield Fault("bytes", "has no effect here")
        if self.part == "truncate" and self.bytes == 0:
            yield Fault("bytes", "must be at least 1, or nothing is cut")

    def effect_fault(self, schema: ApiSchema, version: int) -> Fault | None:
        if self.part in RECORD_PARTS and schema.key != ApiKey.FETCH:
            return Fault("part", "only responses of FETCH have record batches")
        versions = schema.response.__flexible__
        if self.part == "tagged_field" and not versions.has(version):
            return Fault(
                "part",
                f"responses of {schema.key.name} have tagged fields {in_versions(versions)}; "
                "use another part or other versions",
            )
        return None

    @property
    def claims(self) -> bool:
        """A rule about records does not claim: there may be none."""
        return self.part not in RECORD_PARTS

    @property
    def changes_fields(self) -> bool:
        return self.part in RECORD_PARTS or self.part == "tagged_field"

    def change(self, response: ChangedResponse) -> Any:
        if self.part == "tagged_field":
            add_tagged_field(response.message)
        elif self.part in RECORD_PARTS:
            for partition in response.partitions():
                loaded = response.load(partition.records)
                partition.records = damage_records(loaded, self.part)
        return response.message

    def damage(self, frame: _Frame) -> _Frame:
        return frame if self.changes_fields else damage_frame(frame, self.part, self.bytes)


@dataclass
class Replace(Action, name="replace"):
    """Replaces fields of the response; `before` the others have their defaults."""

    response: Annotated[
        Mapping[str, object],
        Length(0, 1000),
        Doc("Fields of the response that are replaced, with Kafka's names in snake case."),
    ]
    at: At = None

    places = (AFTER, BEFORE)
    is_final = needs_response = replaces_response = True
    changes_fields = True
    api_reason = "fields of a response depend on it"

    def api_faults(self, schema: ApiSchema, low: int, high: int) -> Iterator[Fault]:
        faults = [*response_faults(schema.response, self.response)]
        yield from faults or self._absent_fields(schema, low, high)

    def _absent_fields(self, schema: ApiSchema, low: int, high: int) -> Iterator[Fault]:
        if not self.response and self.place == AFTER:
            yield Fault("response", "must have a field, or nothing is replaced")
        for name in self.response:
            versions = field_versions(schema.response, name)
            if versions.high < low or versions.low > high:
                yield self._absent_field(schema, name)

    def _absent_field(self, schema: ApiSchema, name: str) -> Fault:
        where = in_versions(field_versions(schema.response, name))
        return Fault(f"response.{name}", f"is in responses of {schema.key.name} {where}")

    def effect_fault(self, schema: ApiSchema, version: int) -> Fault | None:
        names, cls = list(self.response), schema.response
        if self.place == AFTER and not any(
            field_versions(cls, name).has(version) for name in names
        ):
            return self._absent_field(schema, names[0])
        if can_encode(cls, self.response, version):
            return None
        name = schema.key.name
        return Fault("response", f"cannot be encoded in version {version} of {name}; change it")

    def change(self, response: ChangedResponse) -> Any:
        set_fields(response.message, self.response)
        return response.message


@dataclass
class Patch(Action, name="patch"):
    """Changes fields of the elements of the response that the rule matches, e.g. of one partition,
    or of all if it selects none. Other elements and fields stay as they are.
    """

    fields: Annotated[
        Mapping[str, object],
        Length(1, 1000),
        Doc(
            "Fields of matching elements, or of what is around them, with Kafka's names in snake "
            "case. The innermost field of a name is changed."
        ),
    ]

    needs_response = replaces_response = changes_fields = matches_response = True
    api_reason = "fields of a response depend on it"

    def api_faults(self, schema: ApiSchema, low: int, high: int) -> Iterator[Fault]:
        del low, high
        yield from element_faults(schema.response, self.fields, "fields")

    def effect_fault(self, schema: ApiSchema, version: int) -> Fault | None:
        for name, value in self.fields.items():
            if not can_patch(schema.response, name, value, version):
                text = f"cannot have this value in version {version} of {schema.key.name}"
                return Fault(f"fields.{name}", text)
        return None

    def change(self, response: ChangedResponse) -> Any:
        for structs in response.elements():
            for name, value in self.fields.items():
                owner = owner_of(structs, name, response.version)
                if owner is not None:
                    set_fields(owner, {name: value})
        return response.message


@dataclass
class Observe(Action, name="observe"):
    """Counts only."""

    counts_on_arrival = True


class _BrokerAction(Action):
    places = (BEFORE, AFTER)
    acts_on_broker = True

    async def stop(self, request: StoppedRequest) -> None:
        await request.act()


@dataclass
class Kill(_BrokerAction, name="kill"):
    """Kills a process of the broker, which is restarted; `after` the work, its response is lost if
    that process has to send it.
    """

    process: _Process
    at: At = None

    async def act(self, broker: ControlledProcesses, rule_id: str) -> None:
        await broker.kill(self.process, f"fault rule {rule_id}")


@dataclass
class Pause(_BrokerAction, name="pause"):
    """Stops a process of the broker for some time; the request waits as long."""

    process: _Process
    pause_ms: _PauseMs
    at: At = None

    async def act(self, broker: ControlledProcesses, rule_id: str) -> None:
        del rule_id
        await broker.pause(self.process, self.pause_ms)


@dataclass
class Advance(_BrokerAction, name="advance"):
    """Advances the broker's clock."""

    advance_ms: Annotated[
        int, Range(1, TIME_MS_MAX), Doc("How far the broker's clock is advanced.")
    ]
    at: At = None

    async def act(self, broker: ControlledProcesses, rule_id: str) -> None:
        del rule_id
        await broker.advance_clock(self.advance_ms)


class _AppendAction(Action):
    """The worker carries it out at each append that the rule matches, of clients or of its own."""

    matches = "appends"
    selectors = ("topic", "partition")


@dataclass
class FailAppend(_AppendAction, name="fail_append"):
    """Lets appends to logs fail as on a full disk. With `bytes`, so much of the batch reaches the
    file and stays there; with `crash`, the process is killed then.
    """

    errno: Annotated[
        Literal["ENOSPC", "EDQUOT", "EROFS", "EIO"] | None,
        Doc("The error of the append; by default `ENOSPC`."),
    ] = None
    bytes: _Bytes = None
    crash: Annotated[bool | None, Doc("Kill the process that appends.")] = None


@dataclass
class StallAppend(_AppendAction, name="stall_append"):
    """Lets the worker wait in an append with all its partitions, like a disk that is stuck."""

    pause_ms: _PauseMs


@dataclass
class Refuse(Action, name="refuse"):
    """Closes new connections with a TCP reset."""

    matches = "new connections"
    selectors = CONNECTION_FIELDS
    is_final = True


@dataclass
class Silent(Action, name="silent"):
    """Accepts new connections, reads their requests and answers none."""

    matches = "new connections"
    selectors = CONNECTION_FIELDS
    is_final = True


@dataclass
class Close(Action, name="close"):
    """Closes the connections that are open when the rule is added."""

    matches = "open connections"
    selectors = (*CLIENT_FIELDS, *CONNECTION_FIELDS)

    def faults(self, given: Mapping[str, Any]) -> Iterator[Fault]:
        yield from super().faults(given)
        if given.get("after_ms"):
            yield Fault("after_ms", "must not be set: close acts when the rule is added only")


# Versions, and the names of APIs and errors -------------------------------------------------------


def in_versions(versions: Versions) -> str:
    """Versions as the end of a sentence."""
    if versions == NO_VERSIONS:
        return "in no version"
    if versions.high == HIGHEST_VERSION:
        return f"from version {versions.low} on"
    return f"in versions {versions}"


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


@cache
def _by_name(names: type[ApiKey | ErrorCode]) -> Mapping[str, int]:
    return {_folded(member.name): int(member) for member in names}


def _number_of(text: str, names: type[ApiKey | ErrorCode]) -> int | None:
    """The number of a name in any spelling, or of its digits."""
    digits = text.removeprefix("-")
    is_number = digits.isdecimal() and digits.isascii() and len(digits) < 6
    number = int(text) if is_number else _by_name(names).get(_folded(text))
    return number if number in _by_name(names).values() else None


def api_of(text: str) -> ApiKey | None:
    """Return the API of a name in any spelling, or of a key."""
    number = _number_of(text, ApiKey)
    return None if number is None else ApiKey(number)


def error_of(text: str) -> int | None:
    """Return the code of an error's name in any spelling, or of a number."""
    return _number_of(text, ErrorCode)


def nearest(given: str, names: type[ApiKey | ErrorCode]) -> str:
    """The name that may have been meant, as the end of a sentence."""
    return did_you_mean(given.upper().replace("-", "_"), [member.name for member in names])

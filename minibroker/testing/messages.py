"""Messages of topics in tests: produce them, read them, and wait for them or for a group.

Owns the helpers that need no Kafka client library, for a broker of ours and for any other Kafka. It
must never import the broker. Invariant: nothing here joins a group or commits an offset, so the
application under test sees the same with and without them; an error says what there was instead of
what was awaited. Kafka's ``IntegrationTestUtils`` for streams has similar functions.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from minibroker.client.control import Control

TIMEOUT_S: Final = 10.0
"""How long the helpers wait by default, in real seconds."""

MESSAGES_MAX: Final = 100_000
"""Maximum number of messages that one call returns."""

PAGE: Final = 1000
"""Messages in one request."""

REQUEST_BYTES: Final = 1024 * 1024
"""Maximum bytes of keys and values of a request with several messages."""

SHOWN_MAX: Final = 3
"""Number of messages that an error shows."""

GRACE_S: Final = 30.0
"""How much longer than the wait an answer may take."""


class WaitTimedOut(AssertionError):
    """What a test waits for did not happen in time; the text says what there was instead."""


class TooManyMessages(RuntimeError):
    """A topic has more messages than one call returns."""


class TopicMessage(NamedTuple):
    """A message of a topic, to produce or as it was read.

    By default the key chooses the partition, messages without a key go to each partition in turn,
    and the timestamp is the broker's.
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None

    @property
    def text(self) -> str:
        """The value as text; null is empty, and bytes that are not UTF-8 are replaced."""
        return (self.value or b"").decode(errors="replace")

    def json(self) -> Any:
        """The value, decoded from JSON."""
        return json.loads(self.value or b"")

    def __str__(self) -> str:
        key = "" if self.key is None else f"{shown(self.key)}: "
        return f"{self.partition}@{self.offset} {key}{shown(self.value)}"


NewMessage: TypeAlias = (
    TopicMessage | bytes | str | tuple[Any, Any] | Mapping[str, Any] | list[Any] | None
)
"""A value, a pair of key and value, or a message; mappings and lists are values as JSON."""


def shown(content: bytes | None) -> str:
    """Return the beginning of a key or value for a person."""
    text = "null" if content is None else repr(content.decode(errors="backslashreplace"))
    return text if len(text) <= 60 else f"{text[:60]}…"


def message_of(given: NewMessage) -> TopicMessage:
    """Return a message to produce."""
    if isinstance(given, TopicMessage):
        return given
    if isinstance(given, tuple):
        if len(given) != 2:
            raise TypeError(f"a tuple must be a key and a value, not {len(given)} items: {given!r}")
        return TopicMessage(content_of(given[1]), content_of(given[0]))
    return TopicMessage(content_of(given))


def content_of(given: object) -> bytes | None:
    """Return a key or value: bytes as they are, text in UTF-8, mappings and lists as JSON."""
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, Mapping | list):
        return json.dumps(given).encode()
    kind = type(given).__name__
    raise TypeError(f"a key or value must be bytes, text, JSON or None, not {kind}: {given!r}")


class Page(NamedTuple):
    """Some messages of a topic, and the next offset of each partition."""

    messages: list[TopicMessage]
    positions: Mapping[int, int]
    has_more: bool


class MessageHelpers(ABC):
    """Helpers of a broker; those with a leading ``_`` differ between brokers."""

    def produce(self, topic: str, messages: Iterable[NewMessage]) -> list[TopicMessage]:
        """Produce messages; return them with their partitions and offsets when they are stored.

        A message is a value, a ``(key, value)`` pair, or a `TopicMessage`: bytes, text, or mappings
        and lists, which become JSON. The topic is created if clients may do so.
        """
        if isinstance(messages, str | bytes | Mapping):
            raise TypeError(f"messages must be a list: produce({topic!r}, [{messages!r}])")
        produced: list[TopicMessage] = []
        for part in _parts([message_of(message) for message in messages]):
            produced += self._append(topic, part)
        return produced

    def messages(self, topic: str, *, last: int | None = None) -> list[TopicMessage]:
        """Return the messages of a topic, or the ``last`` ones of each partition, without waiting.

        They are sorted by timestamp; those of one partition keep their order. Aborted messages, and
        those of open transactions, are not among them.
        """
        page = self._read(topic, None, last=last)
        found = list(page.messages)
        while page.has_more:
            if len(found) >= MESSAGES_MAX:
                text = f"topic {topic!r} has more than {MESSAGES_MAX} messages"
                raise TooManyMessages(f"{text}: read the end of it, with last=1000")
            page = self._read(topic, page.positions)
            found += page.messages
        return sorted_by_time(found)

    def wait_for(
        self,
        topic: str,
        count: int = 1,
        *,
        where: Callable[[TopicMessage], object] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> list[TopicMessage]:
        """Wait until a topic has ``count`` messages, and return the first ones.

        With ``where``, only messages for which it is true count. Raises `WaitTimedOut`.
        """
        deadline = time.monotonic() + timeout_s
        seen: list[TopicMessage] = []
        found: list[TopicMessage] = []
        positions: Mapping[int, int] | None = None
        while len(found) < count:
            wait = 1 if where is not None else min(count - len(found), PAGE)
            left = max(deadline - time.monotonic(), 0)
            page = self._read(topic, positions, wait=wait, timeout_s=left)
            positions = page.positions or None
            seen += page.messages
            found += [message for message in page.messages if where is None or where(message)]
            if len(seen) > MESSAGES_MAX:
                raise TooManyMessages(f"topic {topic!r} has more than {MESSAGES_MAX} messages")
            if len(found) < count and time.monotonic() >= deadline and not page.has_more:
                matching = None if where is None else len(found)
                text = f"{count} messages of topic {topic!r} were awaited for {timeout_s:g} s"
                raise WaitTimedOut(f"{text}, and {_there(seen, matching)}")
        return sorted_by_time(found)[:count]

    def wait_for_group(
        self,
        group: str,
        state: str | None = None,
        members: int | None = None,
        *,
        lag: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """Wait for a group's state, number of members, and lag at most; return the group.

        Without any of them, wait until the group is ``Stable``. Raises `WaitTimedOut`.
        """
        if state is None and members is None and lag is None:
            state = "Stable"
        return self._await_group(group, state, members, lag, timeout_s)

    @abstractmethod
    def _append(self, topic: str, messages: list[TopicMessage]) -> list[TopicMessage]:
        """Produce messages, and return them with their positions."""

    @abstractmethod
    def _read(
        self,
        topic: str,
        positions: Mapping[int, int] | None,
        *,
        last: int | None = None,
        wait: int = 0,
        timeout_s: float = 0,
    ) -> Page:
        """Read from positions on, by default from the first messages.

        With ``wait``, wait for so many messages and for the topic. Returns what there is.
        """

    @abstractmethod
    def _await_group(
        self, group: str, state: str | None, members: int | None, lag: int | None, timeout_s: float
    ) -> dict[str, Any]:
        """Wait for a group, or raise `WaitTimedOut`."""


def sorted_by_time(messages: list[TopicMessage]) -> list[TopicMessage]:
    """Merge the messages of partitions by timestamp; each partition keeps its order."""
    import heapq

    partitions: dict[int | None, list[TopicMessage]] = {}
    for message in messages:
        partitions.setdefault(message.partition, []).append(message)
    streams = [partitions[index] for index in sorted(partitions, key=lambda index: index or 0)]
    return list(heapq.merge(*streams, key=lambda message: message.timestamp_ms or 0))


def _parts(messages: list[TopicMessage]) -> Iterator[list[TopicMessage]]:
    part: list[TopicMessage] = []
    size = 0
    for message in messages:
        added = len(message.key or b"") + len(message.value or b"")
        if part and (len(part) >= PAGE or size + added > REQUEST_BYTES):
            yield part
            part, size = [], 0
        part.append(message)
        size += added
    if part:
        yield part


def _there(seen: list[TopicMessage], matching: int | None) -> str:
    """Describe what there is instead of what is awaited."""
    if not seen:
        return "there are none. Does the application use this broker and this topic?"
    count = f"there are {len(seen)}" if matching is None else f"{matching} of {len(seen)} match"
    last = "\n  ".join(map(str, seen[-SHOWN_MAX:]))
    return f"{count}. The last (partition@offset, key, value):\n  {last}"


class ControlledMessages(MessageHelpers):
    """The helpers over the control API of a broker of ours."""

    @property
    @abstractmethod
    def control(self) -> Control:
        """Calls to the control API."""

    def _append(self, topic: str, messages: list[TopicMessage]) -> list[TopicMessage]:
        from minibroker.client.control import target_of

        target = target_of(("v1", "topics", topic, "records"))
        body = {"records": [_as_json(message) for message in messages]}
        answer = json.loads(self.control.request("POST", target, body, GRACE_S))
        return [
            message._replace(**position)
            for message, position in zip(messages, answer["records"], strict=True)
        ]

    def _read(
        self,
        topic: str,
        positions: Mapping[int, int] | None,
        *,
        last: int | None = None,
        wait: int = 0,
        timeout_s: float = 0,
    ) -> Page:
        from minibroker.client.control import ControlError, target_of

        query: dict[str, object] = {"encoding": "base64", "limit": PAGE}
        if positions:
            query["positions"] = ",".join(f"{part}:{at}" for part, at in positions.items())
        if last is not None:
            query["last"] = last

        def read(**further: object) -> Page:
            target = target_of(("v1", "topics", topic, "records"), {**query, **further})
            answer = json.loads(self.control.request("GET", target, None, timeout_s + GRACE_S))
            found = [_from_json(record) for record in answer["records"]]
            following = {int(index): offset for index, offset in answer["next"].items()}
            return Page(found, following, answer["has_more"])

        if not wait:
            return read()
        try:
            return read(wait=wait, timeout_ms=int(timeout_s * 1000))
        except ControlError as error:
            if error.status != 408:
                raise
        try:
            return read()  # What there is.
        except ControlError as error:
            if error.status != 404:
                raise
            return Page([], {}, has_more=False)

    def _await_group(
        self, group: str, state: str | None, members: int | None, lag: int | None, timeout_s: float
    ) -> dict[str, Any]:
        from minibroker.client.control import ControlError, target_of

        given = {"state": state, "members": members, "lag": lag, "group_id": group}
        query = {name: value for name, value in given.items() if value is not None}
        query["timeout_ms"] = int(timeout_s * 1000)
        target = target_of(("v1", "groups", ""), query)
        try:
            answer = self.control.request("GET", target, None, timeout_s + GRACE_S)
        except ControlError as error:
            if error.status == 408:
                raise WaitTimedOut(error.text) from None
            raise
        described: dict[str, Any] = json.loads(answer)
        return described


def _as_json(message: TopicMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "key_base64": _base64(message.key),
        "value_base64": _base64(message.value),
        "partition": message.partition,
        "timestamp_ms": message.timestamp_ms,
        "headers": [
            {"key": name, "value_base64": _base64(value)} for name, value in message.headers
        ],
    }
    return {name: value for name, value in fields.items() if value is not None}


def _base64(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


def _from_json(record: Mapping[str, Any]) -> TopicMessage:
    return TopicMessage(
        value=_bytes(record["value_base64"]),
        key=_bytes(record["key_base64"]),
        headers=tuple(
            (header["key"], _bytes(header["value_base64"])) for header in record["headers"]
        ),
        partition=record["partition"],
        offset=record["offset"],
        timestamp_ms=record["timestamp_ms"],
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)

"""``minibroker consume``: print the records of a topic.

Owns the start and the end of consumption, and the format of records. It must never know fetch
requests or the group protocol. Invariant: an offset is committed only after its record was printed.
Kafka's counterpart is ``kafka-console-consumer.sh``.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, NoReturn

import click

from minibroker.cli.access import bootstrap_option
from minibroker.cli.commands import Argument, Command, examples
from minibroker.cli.completion import complete_topics
from minibroker.cli.output import (
    ExitCode,
    InvalidUsage,
    TooFewMessages,
    emit,
    json_line,
    note,
    text_or_none,
)
from minibroker.cli.times import parse_duration_ms, read_time_ms
from minibroker.client.connection import BootstrapServers
from minibroker.client.consumer import (
    EARLIEST,
    LATEST,
    ConsumerCoordinator,
    ConsumerRecord,
    Fetcher,
    committed_offsets,
    list_offsets,
)
from minibroker.client.kafka_client import KafkaClient

POLL_MS: Final = 500
HEARTBEAT_S: Final = 1.0
COMMIT_S: Final = 1.0

EXAMPLES = examples(
    "minibroker consume cats --from-beginning",
    "minibroker consume cats --from-beginning --max-messages 10 --timeout 5",
    "minibroker consume cats --since 10m",
    "minibroker consume cats --last 5 --format '%T %p/%o %k=%s'",
    "minibroker consume cats --group cat-lovers",
    "minibroker consume cats --partition 0 --offset 42 --format json",
    after="Run it twice with the same --group, and the two share the partitions.",
)


def _value(message: ConsumerRecord) -> str:
    return text_or_none(message.record.value) or ""


def _key_value(message: ConsumerRecord) -> str:
    return f"{text_or_none(message.record.key) or ''}\t{_value(message)}"


def _json(message: ConsumerRecord) -> str:
    record = message.record
    return json_line(
        {
            "topic": message.topic,
            "partition": message.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": text_or_none(record.key),
            "value": text_or_none(record.value),
            "headers": [[name, text_or_none(value)] for name, value in record.headers],
        }
    )


FORMATS: Final[dict[str, Callable[[ConsumerRecord], str]]] = {
    "value": _value,
    "key-value": _key_value,
    "json": _json,
}


def _headers(message: ConsumerRecord) -> str:
    pairs = message.record.headers
    return ",".join(f"{name}={text_or_none(value) or ''}" for name, value in pairs)


DIRECTIVES: Final[dict[str, Callable[[ConsumerRecord], str]]] = {
    "s": _value,
    "k": lambda message: text_or_none(message.record.key) or "",
    "h": _headers,
    "t": lambda message: message.topic,
    "p": lambda message: str(message.partition),
    "o": lambda message: str(message.record.offset),
    "T": lambda message: str(message.record.timestamp),
    "%": lambda _: "%",
}
"""Parts of a record in a template, by the letters of ``kcat -f``."""

ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_TEMPLATE_PART: Final = re.compile(r"%(.?)|\\(.)", re.DOTALL)


def read_format(text: str) -> Callable[[ConsumerRecord], str]:
    """Find a format by name, or read a template with ``%``. Raises `InvalidUsage`."""
    if text in FORMATS:
        return FORMATS[text]
    known = (
        f"{', '.join(FORMATS)}, or a template with {' '.join(f'%{name}' for name in DIRECTIVES)}"
    )
    directives = [found[1] for found in _TEMPLATE_PART.finditer(text) if found[1] is not None]
    unknown = [name for name in directives if name not in DIRECTIVES]
    if unknown or not directives:
        raise InvalidUsage(f"--format {text}: must be one of {known}")

    def part(found: re.Match[str], message: ConsumerRecord) -> str:
        if found[1] is not None:
            return DIRECTIVES[found[1]](message)
        return ESCAPES.get(found[2], found[0])

    return lambda message: _TEMPLATE_PART.sub(lambda found: part(found, message), text)


class ConsumeLimits:
    """Limits of messages and of idle time.

    The timeout is checked only after a fetch, because finding the leaders or joining a group may
    take longer than the timeout.
    """

    def __init__(self, messages_max: int | None, silence_s: float | None) -> None:
        self._messages_max = messages_max
        self._silence_s = silence_s
        self._last = time.monotonic()
        self.count = 0

    def counted(self) -> bool:
        """Count one message; return whether the limit is reached."""
        self.count += 1
        self._last = time.monotonic()
        return self.count == self._messages_max

    @property
    def timed_out(self) -> bool:
        return self._left_s <= 0

    @property
    def wait_ms(self) -> int:
        """Maximum wait of a fetch in milliseconds."""
        return min(POLL_MS, max(1, int(min(self._left_s, POLL_MS) * 1000)))

    @property
    def _left_s(self) -> float:
        if self._silence_s is None:
            return math.inf
        return self._last + self._silence_s - time.monotonic()

    @property
    def too_few(self) -> str | None:
        """Error message if too few messages arrived."""
        if self._messages_max is None or self.count >= self._messages_max:
            return None
        return f"only {self.count} of {self._messages_max} messages arrived in time"


@click.command("consume", cls=Command, epilog=EXAMPLES)
@click.argument("topic", cls=Argument, about="The topic.", shell_complete=complete_topics)
@bootstrap_option
@click.option(
    "--from-beginning", is_flag=True, help="Start at the first message instead of after the last."
)
@click.option(
    "--offset", metavar="OFFSET", help="Offset to start at: a number, earliest or latest."
)
@click.option(
    "--since", metavar="TIME", help="Start at a time, or a duration ago: 10m, 2026-11-28T09:30:00."
)
@click.option(
    "--last",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Start this number of offsets before the end of each partition.",
)
@click.option("--partition", type=int, metavar="NUMBER", help="Read only this partition.")
@click.option(
    "--group", metavar="GROUP", help="Join this group: resume at its committed offsets, and commit."
)
@click.option(
    "--max-messages",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Stop after this number of messages. [default: never]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop after this time without a message. [default: never]",
)
@click.option(
    "--format",
    "format_",
    default="value",
    help="value, key-value (with a tab between), json, or a template: %s value, %k key, "
    "%h headers, %t topic, %p partition, %o offset, %T timestamp.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
def consume(
    topic: str,
    servers: BootstrapServers,
    from_beginning: bool,
    offset: str | None,
    since: str | None,
    last: int | None,
    partition: int | None,
    group: str | None,
    max_messages: int | None,
    timeout: float | None,
    format_: str,
    as_json: bool,
) -> None:
    """Print messages as they arrive."""
    as_text = FORMATS["json"] if as_json else read_format(format_)
    if group is not None and (partition is not None or offset is not None):
        raise InvalidUsage("--group: the group decides partitions and offsets, so leave those out")
    start = read_start(from_beginning, offset, since, last)
    limits = ConsumeLimits(max_messages, timeout)
    try:
        with _ending_on_sigterm(), KafkaClient(*servers) as client:
            if group is None:
                messages = read_alone(client, topic, partition, start, limits)
            else:
                messages = read_in_group(client, topic, group, start, limits)
            for message in messages:
                emit(as_text(message))
    except KeyboardInterrupt:
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
    if limits.too_few:
        raise TooFewMessages(limits.too_few)


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C: commit offsets and leave the group."""

    def end(number: int, frame: object) -> NoReturn:
        del number, frame
        raise click.exceptions.Exit(ExitCode.TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class StartPosition(NamedTuple):
    """Where to start: at a record offset or an end of the log, at a time, or before the end."""

    offset: int = LATEST
    time_ms: int | None = None
    last: int = 0


def read_start(
    from_beginning: bool, offset: str | None, since: str | None, last: int | None
) -> StartPosition:
    """Read the options that say where to start. Raises `InvalidUsage` if they are several."""
    given = {
        "--from-beginning": from_beginning or None,
        "--offset": offset,
        "--since": since,
        "--last": last,
    }
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidUsage(f"{' and '.join(names)} both say where to start: choose one")
    if since is not None:
        ago_ms = parse_duration_ms(since)
        now_ms = time.time_ns() // 1_000_000
        if ago_ms is None:
            return StartPosition(
                time_ms=read_time_ms("--since", since, "; or a duration, e.g. 10m")
            )
        return StartPosition(time_ms=now_ms - ago_ms)
    if last is not None:
        return StartPosition(last=last)
    return StartPosition(EARLIEST if from_beginning else read_offset(offset))


def read_offset(text: str | None) -> int:
    """Parse an offset; the names of log ends become Kafka's negative numbers."""
    if text is None or text == "latest":
        return LATEST
    if text == "earliest":
        return EARLIEST
    if text.isdecimal():
        return int(text)
    raise InvalidUsage(f"--offset {text}: must be a number, earliest or latest")


def start_positions(
    client: KafkaClient, topic: str, wanted: Sequence[int] | None, start: StartPosition
) -> dict[int, int]:
    """Find the start offset of each partition in ``wanted`` (all if None)."""
    found = client.topic(topic)
    indexes = [item.partition_index for item in found.partitions]
    unknown = sorted(set(wanted or ()) - set(indexes))
    if unknown:
        raise InvalidUsage(
            f"--partition {unknown[0]}: topic {topic} has partitions 0 to {len(indexes) - 1}"
        )
    chosen = indexes if wanted is None else list(wanted)
    if start.offset >= 0:
        return dict.fromkeys(chosen, start.offset)
    ends = list_offsets(client, found, start.offset)
    at_time = {} if start.time_ms is None else list_offsets(client, found, start.time_ms)
    if start.last:
        starts = list_offsets(client, found, EARLIEST)
        return {index: max(ends[index] - start.last, starts[index]) for index in chosen}
    # Without a record of that time or later, the answer is -1.
    return {
        index: at_time[index] if at_time.get(index, -1) >= 0 else ends[index] for index in chosen
    }


def read_alone(
    client: KafkaClient,
    topic: str,
    partition: int | None,
    start: StartPosition,
    limits: ConsumeLimits,
) -> Iterator[ConsumerRecord]:
    """Yield messages of one or all partitions, without a group, until a limit is reached."""
    wanted = None if partition is None else [partition]
    reader = Fetcher(client, topic, start_positions(client, topic, wanted, start))
    while True:
        for message in reader.poll(limits.wait_ms):
            yield message
            if limits.counted():
                return
        if limits.timed_out:
            return


def read_in_group(
    client: KafkaClient, topic: str, group: str, start: StartPosition, limits: ConsumeLimits
) -> Iterator[ConsumerRecord]:
    """Yield messages of the partitions that the group assigns, until a limit is reached."""
    client.topic(topic)
    membership = ConsumerCoordinator(client, group, topic)
    try:
        while True:
            partitions = membership.join()
            note(f"group {group}: partitions {', '.join(map(str, partitions)) or 'none'}")
            committed = committed_offsets(client, group, topic, partitions)
            positions = start_positions(client, topic, partitions, start)
            for index in partitions:
                positions[index] = committed.get((topic, index), positions[index])
            if (yield from _one_generation(membership, Fetcher(client, topic, positions), limits)):
                return
    finally:
        membership.leave()


def _one_generation(
    membership: ConsumerCoordinator, reader: Fetcher, limits: ConsumeLimits
) -> Generator[ConsumerRecord, None, bool]:
    """Yield messages until a limit is reached (returns True) or the group rebalances (False)."""
    printed: dict[int, int] = {}
    heartbeat = IntervalTimer(HEARTBEAT_S)
    commit = IntervalTimer(COMMIT_S)
    try:
        while True:
            for message in reader.poll(limits.wait_ms):
                yield message
                printed[message.partition] = message.record.offset + 1
                if limits.counted():
                    return True
                if heartbeat.is_due() and membership.must_rejoin():
                    return False
            if heartbeat.is_due() and membership.must_rejoin():
                return False
            if commit.is_due():
                membership.commit(printed)
            if not reader.positions:
                time.sleep(POLL_MS / 1000)  # No partitions are assigned to this member.
            if limits.timed_out:
                return True
    finally:
        membership.commit(printed)


class IntervalTimer:
    """A timer that expires once in each interval."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._last = time.monotonic()

    def is_due(self) -> bool:
        now = time.monotonic()
        if now - self._last < self._interval_s:
            return False
        self._last = now
        return True

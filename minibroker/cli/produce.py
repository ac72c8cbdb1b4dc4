"""``minibroker produce``: send lines as records.

Owns the conversion of lines to records. It must never know batches or leaders. Invariant: all lines
that have been read are sent before the command waits for more, so typed lines and ``tail -f`` in a
pipe arrive at once; lines that were read together have one timestamp. Kafka's counterpart is
``kafka-console-producer.sh``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

import click

from minibroker.cli.access import bootstrap_option
from minibroker.cli.commands import Argument, Command, examples
from minibroker.cli.completion import complete_topics
from minibroker.cli.output import InvalidUsage, emit, json_line, note
from minibroker.client.connection import BootstrapServers
from minibroker.client.kafka_client import KafkaClient
from minibroker.client.producer import RecordProducer
from minibroker_protocol.compression import Compression
from minibroker_protocol.records import Record

READ_BYTES: Final = 64 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
ACKS: Final = {"all": -1, "-1": -1, "1": 1, "0": 0}

EXAMPLES = examples(
    'minibroker produce cats "hello" "hello again"',
    "echo hello | minibroker produce cats",
    r"printf 'tom:black\ntim:white\n' | minibroker produce cats --key-separator :",
    "minibroker produce cats --header colour=black --compression zstd < lines.txt",
)


@click.command("produce", cls=Command, epilog=EXAMPLES)
@click.argument("topic", cls=Argument, about="The topic.", shell_complete=complete_topics)
@click.argument(
    "messages",
    cls=Argument,
    nargs=-1,
    metavar="[MESSAGE]...",
    about="Values; without any, lines of stdin.",
)
@bootstrap_option
@click.option("--key", help="The key of every record.")
@click.option("--key-separator", help="Separator between key and value in a line.")
@click.option(
    "--header",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of every record; may be repeated.",
)
@click.option("--partition", type=int, metavar="NUMBER", help="Send all records to this partition.")
@click.option("--acks", default="all", help="Required acknowledgements: all, 1 or 0.")
@click.option("--compression", default="none", help="none, gzip, snappy, lz4 or zstd.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per batch sent.")
def produce(
    topic: str,
    messages: Sequence[str],
    servers: BootstrapServers,
    key: str | None,
    key_separator: str | None,
    header: Sequence[str],
    partition: int | None,
    acks: str,
    compression: str,
    as_json: bool,
) -> None:
    """Send messages: arguments, or lines of standard input."""
    if key is not None and key_separator is not None:
        raise InvalidUsage("--key and --key-separator both set keys: choose one")
    headers = tuple(read_header(text) for text in header)
    codec = read_codec(compression)
    if acks not in ACKS:
        raise InvalidUsage(f"--acks {acks}: must be all, 1 or 0")
    groups = iter([[text.encode() for text in messages]]) if messages else read_lines(stdin())
    sent = 0
    with KafkaClient(*servers) as client:
        producer = RecordProducer(
            client, topic, acks=ACKS[acks], compression=codec, partition=partition
        )
        for lines in groups:
            now_ms = time.time_ns() // 1_000_000
            for line in lines:
                record_key, value = split_line(line, key, key_separator)
                producer.send(
                    Record(timestamp=now_ms, key=record_key, value=value, headers=headers)
                )
            for batch in producer.flush():
                sent += batch.records
                if as_json:
                    emit(json_line({"topic": topic, **batch._asdict()}))
    note(f"sent {sent} {'message' if sent == 1 else 'messages'} to {topic}")


def stdin() -> BinaryIO:
    """Open standard input as bytes; print a prompt if it is a terminal."""
    if sys.stdin.isatty():
        note("type messages, one per line; press Ctrl-D to end")
    return sys.stdin.buffer


def read_lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """Yield available lines in groups, without line ends; wait for the next group."""
    rest = b""
    while chunk := _read_some(source):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise InvalidUsage(f"a line of the input is longer than {LINE_BYTES_MAX} bytes")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def _read_some(source: BinaryIO) -> bytes:
    read1 = getattr(source, "read1", source.read)
    chunk: bytes = read1(READ_BYTES)
    return chunk


def split_line(line: bytes, key: str | None, separator: str | None) -> tuple[bytes | None, bytes]:
    """Split a line into key and value. Raises `InvalidUsage` without the separator."""
    if separator is None:
        return (None if key is None else key.encode()), line
    before, found, after = line.partition(separator.encode())
    if not found:
        shown = line[:60].decode("utf-8", "backslashreplace")
        raise InvalidUsage(f"--key-separator {separator}: the line '{shown}' does not contain it")
    return before, after


def read_header(text: str) -> tuple[str, bytes]:
    """Parse ``name=value`` as a record header. Raises `InvalidUsage` without an equals sign."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise InvalidUsage(f"--header {text}: must be NAME=VALUE, e.g. colour=black")
    return name, value.encode()


def read_codec(text: str) -> Compression:
    """Find a codec by name. Raises `InvalidUsage`, which lists the codecs."""
    try:
        return Compression[text.upper()]
    except KeyError:
        names = ", ".join(codec.name.lower() for codec in Compression)
        raise InvalidUsage(f"--compression {text}: must be one of {names}") from None

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.cli.output import InvalidUsage
from minibroker.cli.produce import read_codec, read_header, read_lines, split_line
from minibroker.testing import MiniBroker
from minibroker_protocol.compression import Compression


class Pipe(io.RawIOBase):
    """Standard input that arrives in the given chunks."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        piece = self._pieces.pop(0) if self._pieces else b""
        buffer[: len(piece)] = piece
        return len(piece)


def groups(*pieces: bytes) -> list[list[bytes]]:
    source = io.BufferedReader(Pipe(*pieces))  # type: ignore[type-var]
    return list(read_lines(source))


def test_lines_are_yielded_when_they_arrive() -> None:
    assert groups(b"a\nb\n", b"c\n") == [[b"a", b"b"], [b"c"]]


def test_lines_that_were_read_together_have_one_timestamp(
    minibroker: MiniBroker, minibroker_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(1_700_000_000_000_000_000, 1_000_000)
    monkeypatch.setattr("minibroker.cli.produce.time.time_ns", lambda: next(times))
    command = ["produce", minibroker_topic, "--bootstrap-server", minibroker.bootstrap_servers]
    CliRunner().invoke(app, [*command, "a", "b", "c"], catch_exceptions=False)
    messages = minibroker.messages(minibroker_topic)
    assert [message.value for message in messages] == [b"a", b"b", b"c"]
    assert len({message.timestamp_ms for message in messages}) == 1


def test_line_in_several_reads_is_joined() -> None:
    assert groups(b"a", b"b", b"c\nd") == [[b"abc"], [b"d"]]


def test_crlf_is_removed() -> None:
    assert groups(b"a\r\n\r\n") == [[b"a", b""]]


def test_empty_input_has_no_lines() -> None:
    assert groups() == []


def test_split_line_uses_the_first_separator() -> None:
    assert split_line(b"k::v::w", None, "::") == (b"k", b"v::w")
    assert split_line(b"v", "k", None) == (b"k", b"v")
    assert split_line(b"v", None, None) == (None, b"v")


def test_split_line_without_separator_raises() -> None:
    with pytest.raises(InvalidUsage, match="the line 'no colon' does not contain it"):
        split_line(b"no colon", None, ":")


def test_read_header_parses_name_and_value() -> None:
    assert read_header("a=b=c") == ("a", b"b=c")
    with pytest.raises(InvalidUsage, match="must be NAME=VALUE"):
        read_header("a")


def test_read_codec_accepts_names() -> None:
    assert read_codec("zstd") is Compression.ZSTD
    with pytest.raises(InvalidUsage, match="must be one of none, gzip, snappy, lz4, zstd"):
        read_codec("brotli")


def test_batches_are_printed_as_json(command: Any, minibroker_topic: str) -> None:
    printed = command("produce", minibroker_topic, "a", "b", "--json").stdout
    assert json.loads(printed) == {
        "topic": minibroker_topic,
        "partition": 0,
        "first_offset": 0,
        "records": 2,
    }

from __future__ import annotations

import io

import pytest

from minibroker.cli.errors import UsageMistake
from minibroker.cli.produce import read_codec, read_header, read_lines, split_line
from protocol.compression import Compression


class Pipe(io.RawIOBase):
    """Standard input that arrives in given pieces."""

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


def test_lines_are_handed_on_when_they_arrive_and_not_later() -> None:
    assert groups(b"a\nb\n", b"c\n") == [[b"a", b"b"], [b"c"]]


def test_a_line_in_pieces_is_put_together() -> None:
    assert groups(b"a", b"b", b"c\nd") == [[b"abc"], [b"d"]]


def test_line_ends_of_windows_are_taken_off() -> None:
    assert groups(b"a\r\n\r\n") == [[b"a", b""]]


def test_no_input_is_no_message() -> None:
    assert groups() == []


def test_a_separator_divides_key_and_value_at_its_first_place() -> None:
    assert split_line(b"k::v::w", None, "::") == (b"k", b"v::w")
    assert split_line(b"v", "k", None) == (b"k", b"v")
    assert split_line(b"v", None, None) == (None, b"v")


def test_a_line_without_the_separator_is_shown() -> None:
    with pytest.raises(UsageMistake, match="it is not in the line 'no colon'"):
        split_line(b"no colon", None, ":")


def test_headers_are_pairs() -> None:
    assert read_header("a=b=c") == ("a", b"b=c")
    with pytest.raises(UsageMistake, match="must be NAME=VALUE"):
        read_header("a")


def test_codecs_go_by_name() -> None:
    assert read_codec("zstd") is Compression.ZSTD
    with pytest.raises(UsageMistake, match="must be one of none, gzip, snappy, lz4, zstd"):
        read_codec("brotli")

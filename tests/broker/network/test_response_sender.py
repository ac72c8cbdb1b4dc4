"""Responses as they go out (lengths, bytes, pieces of files), and the files they need."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from minibroker.broker.log.log import FileSlice
from minibroker.broker.network.response_sender import (
    CACHED_MAX,
    COPIED_BYTES_MAX,
    COPIED_PIECE_MAX,
    Chunk,
    OpenFiles,
    RecordsGone,
    RecordsUnreadable,
    join_response,
    send_response,
)
from minibroker.runtime.stream import MemoryStream, memory_stream_pair
from tests.descriptors import open_below
from tests.runtime.test_system import no_descriptor_left

CONTENT = bytes(range(256)) * 1024


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def files() -> Iterator[OpenFiles]:
    made = OpenFiles(1024)
    yield made
    made.forget()


class Counting(MemoryStream):
    """Counts what it sends."""

    def __init__(self) -> None:
        client, server = memory_stream_pair()
        super().__init__(server._outgoing, server._incoming, server.local, server.peer)
        self.client = client
        self.writes = 0
        self.pieces = 0

    async def send_all(self, data: bytes | memoryview, *, more: bool = False) -> None:
        self.writes += 1
        await super().send_all(data, more=more)

    async def send_file(self, descriptor: int, position: int, length: int) -> None:
        self.pieces += 1
        await super().send_file(descriptor, position, length)


async def sent(stream: Counting, files: OpenFiles, header: bytes, chunks: list[Chunk]) -> bytes:
    """Return what the client receives; the returned count must be right."""
    received = bytearray()

    async def send(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        count = await send_response(stream, files, header, chunks)
        stream.close()
        assert count == 4 + len(header) + sum(map(len, chunks))

    room = memoryview(bytearray(100_000))
    async with trio.open_nursery() as nursery:
        await nursery.start(send)
        while count := await stream.client.receive_into(room):
            received += room[:count]
    return bytes(received)


async def test_small_response_is_one_write(files: OpenFiles, segment: Path) -> None:
    stream = Counting()
    chunks: list[Chunk] = [b"ab", FileSlice(str(segment), 5, 10), bytearray(b"c"), memoryview(b"d")]
    data = await sent(stream, files, b"head", chunks)
    assert data == (18).to_bytes(4, "big") + b"headab" + CONTENT[5:15] + b"cd"
    assert (stream.writes, stream.pieces) == (1, 0)


async def test_large_pieces_never_enter_this_process(files: OpenFiles, segment: Path) -> None:
    stream = Counting()
    piece = FileSlice(str(segment), 1, COPIED_BYTES_MAX)
    data = await sent(stream, files, b"head", [b"ab", piece, b"", piece, b"cd"])
    body = b"headab" + CONTENT[1 : 1 + COPIED_BYTES_MAX] * 2 + b"cd"
    assert data == len(body).to_bytes(4, "big") + body
    assert stream.pieces == 2


async def test_large_response_without_files(files: OpenFiles) -> None:
    body = os.urandom(2 * COPIED_BYTES_MAX)
    data = await sent(Counting(), files, b"h", [body])
    assert data[5:] == body


@pytest.mark.parametrize("length", [10, 2 * COPIED_BYTES_MAX], ids=["small", "large"])
async def test_deleted_file_is_noticed_before_the_first_byte(
    files: OpenFiles, tmp_path: Path, length: int
) -> None:
    stream = Counting()
    with pytest.raises(RecordsGone, match=r"gone\.log can't be read: No such file"):
        await send_response(
            stream, files, b"head", [b"ab", FileSlice(str(tmp_path / "gone.log"), 0, length)]
        )
    assert stream.writes == 0


@pytest.mark.parametrize(
    ("call", "error", "length"),
    [
        ("open", errno.EMFILE, 10),
        ("open", errno.EMFILE, 2 * COPIED_BYTES_MAX),
        ("open", errno.EIO, 10),
        ("pread", errno.EIO, 10),
    ],
)
async def test_unreadable_file_is_not_reported_as_deleted(
    segment: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: int, length: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    stream = Counting()
    piece = FileSlice(str(segment), 0, length)
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(RecordsUnreadable, match=os.strerror(error)):
        await send_response(stream, OpenFiles(FEW), b"head", [piece])
    assert stream.writes == 0


async def test_large_piece_that_becomes_unreadable_is_not_reported_as_reset(
    files: OpenFiles, segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    piece = FileSlice(str(segment), 0, 2 * COPIED_BYTES_MAX)
    with pytest.raises(RecordsUnreadable, match=os.strerror(errno.EIO)):
        await send_response(Counting(), files, b"head", [piece])


async def test_large_piece_that_is_too_short_is_not_reported_as_reset(
    files: OpenFiles, segment: Path
) -> None:
    stream = Counting()
    piece = FileSlice(str(segment), len(CONTENT) - 10, 2 * COPIED_BYTES_MAX)
    with pytest.raises(RecordsGone, match="bytes too early"):
        await send_response(stream, files, b"head", [piece])


async def test_truncated_file_is_rejected(files: OpenFiles, segment: Path) -> None:
    stream = Counting()
    with pytest.raises(RecordsGone, match="shorter than its index says"):
        await send_response(stream, files, b"h", [FileSlice(str(segment), len(CONTENT) - 5, 10)])
    assert stream.writes == 0


FEW = 16
"""Descriptors of a process that may have four files open."""


@pytest.fixture
def segments(tmp_path: Path) -> list[Path]:
    """More files than may be open, each with bytes of its own."""
    paths = [tmp_path / f"{number:020d}.log" for number in range(100)]
    for number, path in enumerate(paths):
        path.write_bytes(number.to_bytes(4, "big") * 50_000)
    return paths


@pytest.mark.parametrize("length", [1000, COPIED_PIECE_MAX, 100_000])
async def test_pieces_of_more_files_than_may_be_open_are_sent(
    segments: list[Path], length: int, tmp_path: Path
) -> None:
    files, stream = OpenFiles(FEW), Counting()
    open_most = 0

    class Watching(Counting):
        async def send_all(self, data: bytes | memoryview, *, more: bool = False) -> None:
            nonlocal open_most
            open_most = max(open_most, open_below(tmp_path))
            await super().send_all(data, more=more)

    stream = Watching()
    pieces: list[Chunk] = []
    for number, path in enumerate(segments):
        pieces += [b"%03d" % number, FileSlice(str(path), 8, length)]
    data = await sent(stream, files, b"head", pieces)
    body = b"head" + b"".join(
        b"%03d" % number + path.read_bytes()[8 : 8 + length] for number, path in enumerate(segments)
    )
    assert data[4:] == body
    assert open_most <= files.limit == FEW // 4
    if length <= COPIED_PIECE_MAX:
        assert stream.writes <= len(body) // COPIED_BYTES_MAX + 1
    files.forget()
    assert open_below(tmp_path) == 0


async def test_piece_of_a_file_that_may_have_been_replaced_is_not_sent(
    segments: list[Path],
) -> None:
    files, stream = OpenFiles(FEW), Counting()
    pieces: list[Chunk] = [FileSlice(str(path), 0, 100_000) for path in segments]
    received = 0

    async def delete_topic() -> None:
        nonlocal received
        room = memoryview(bytearray(100_000))
        while count := await stream.client.receive_into(room):
            received += count
            if 50_000 < received < 200_000:
                files.forget()  # A topic was deleted.

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete_topic)
        with pytest.raises(RecordsGone, match="may have been replaced"):
            await send_response(stream, files, b"h", pieces)
        stream.close()
    assert 200_000 < received < 3_000_000


def test_response_is_joined_with_its_length(files: OpenFiles, segment: Path) -> None:
    chunks: list[Chunk] = [b"ab", FileSlice(str(segment), 5, 3)]
    assert join_response(files, b"head", chunks) == b"\0\0\0\x09headab" + CONTENT[5:8]


MANY = 100_000


def test_cache_closes_the_least_recently_used_file(tmp_path: Path) -> None:
    files = OpenFiles(MANY)
    before = open_below(tmp_path)
    paths = [tmp_path / f"{number}.log" for number in range(CACHED_MAX + 1)]
    for path in paths:
        path.write_bytes(b"x")
    first = files.get(str(paths[0]))
    for path in paths[1:-1]:
        files.get(str(path))
    assert files.get(str(paths[0])) is first
    files.get(str(paths[-1]))
    assert len(files) == CACHED_MAX
    assert files.get(str(paths[0])) is first
    paths[1].unlink()
    with pytest.raises(FileNotFoundError):
        files.get(str(paths[1]))
    del first
    files.forget()
    assert open_below(tmp_path) == before


def test_open_file_stays_open_after_cache_eviction(segment: Path) -> None:
    files = OpenFiles(MANY)
    opened = files.get(str(segment))
    files.forget()
    assert os.pread(opened.descriptor, 2, 0) == CONTENT[:2]
    segment.unlink()
    segment.write_bytes(b"another")
    again = files.get(str(segment))
    assert os.pread(again.descriptor, 7, 0) == b"another"
    assert files.generation == 1


def test_open_files_are_a_share_of_the_descriptors(tmp_path: Path) -> None:
    files = OpenFiles(32)
    paths = [tmp_path / f"{number}.log" for number in range(20)]
    for path in paths:
        path.touch()
    in_use = [files.get(str(path)) for path in paths[:5]]
    assert (files.limit, len(files), files.opened) == (8, 2, 5)
    mays = [files.may_stay_open]
    in_use.append(files.get(str(paths[5])))
    assert [*mays, files.may_stay_open] == [True, False]
    del in_use
    assert files.opened == 2
    assert files.may_stay_open


def test_open_files_without_a_descriptor_close_those_that_are_not_in_use(
    segment: Path, tmp_path: Path
) -> None:
    files = OpenFiles(MANY)
    other = tmp_path / "other.log"
    other.touch()
    in_use = files.get(str(other))
    files.get(str(segment))
    third = tmp_path / "third.log"
    third.touch()
    with no_descriptor_left():
        assert files.get(str(third)).descriptor >= 0
        assert (len(files), files.opened) == (1, 2)
        files.forget()
        with pytest.raises(FileNotFoundError):
            files.get(str(tmp_path / "none"))
    del in_use


def test_open_files_without_a_descriptor_use_the_reserve(segment: Path, tmp_path: Path) -> None:
    files = OpenFiles(MANY)
    other = tmp_path / "other.log"
    other.touch()
    with no_descriptor_left():
        in_use = files.get(str(segment))
        with pytest.raises(OSError, match="Too many open files"):
            files.get(str(other))
    del in_use


def test_reserve_is_taken_back_when_a_topic_is_deleted(segment: Path) -> None:
    files = OpenFiles(MANY)
    with no_descriptor_left():
        for _ in range(3):
            assert files.get(str(segment)).descriptor >= 0
            files.forget()
            with pytest.raises(OSError, match="Too many open files"):
                os.dup(0)


def test_open_files_that_were_removed_are_closed(segment: Path, tmp_path: Path) -> None:
    files = OpenFiles(MANY)
    before = open_below(tmp_path)
    kept = tmp_path / "kept.log"
    kept.touch()
    files.get(str(segment))
    files.get(str(kept))
    segment.unlink()
    files.forget_removed()
    assert (len(files), open_below(tmp_path)) == (1, before + 1)
    files.forget()

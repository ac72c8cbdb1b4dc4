"""Responses as they go out: lengths, bytes and pieces of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from minibroker.network.sending import (
    COPIED_BYTES_MAX,
    OPEN_FILES_MAX,
    Chunk,
    OpenFiles,
    RecordsGone,
    send_response,
)
from minibroker.runtime.stream import MemoryStream, memory_stream_pair
from minibroker.storage.slices import FileSlice

CONTENT = bytes(range(256)) * 1024


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def files() -> Iterator[OpenFiles]:
    made = OpenFiles()
    yield made
    made.forget()


class Counting(MemoryStream):
    """Counts what it is asked to send."""

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
    """What the client gets; the count that is returned must be right."""
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


async def test_a_small_response_is_one_write(files: OpenFiles, segment: Path) -> None:
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


async def test_a_large_response_without_files(files: OpenFiles) -> None:
    body = os.urandom(2 * COPIED_BYTES_MAX)
    data = await sent(Counting(), files, b"h", [body])
    assert data[5:] == body


@pytest.mark.parametrize("length", [10, 2 * COPIED_BYTES_MAX], ids=["small", "large"])
async def test_a_file_that_is_gone_is_noticed_before_the_first_byte(
    files: OpenFiles, tmp_path: Path, length: int
) -> None:
    stream = Counting()
    with pytest.raises(RecordsGone, match=r"gone\.log can't be read: No such file"):
        await send_response(
            stream, files, b"head", [b"ab", FileSlice(str(tmp_path / "gone.log"), 0, length)]
        )
    assert stream.writes == 0


async def test_a_file_that_is_too_short_is_noticed(files: OpenFiles, segment: Path) -> None:
    stream = Counting()
    with pytest.raises(RecordsGone, match="shorter than its index says"):
        await send_response(stream, files, b"h", [FileSlice(str(segment), len(CONTENT) - 5, 10)])
    assert stream.writes == 0


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_few_files_stay_open_and_the_longest_unused_goes_first(tmp_path: Path) -> None:
    before = open_descriptors()
    files = OpenFiles()
    paths = [tmp_path / f"{number}.log" for number in range(OPEN_FILES_MAX + 1)]
    for path in paths:
        path.write_bytes(b"x")
    first = files.get(str(paths[0]))
    for path in paths[1:-1]:
        files.get(str(path))
    assert files.get(str(paths[0])) is first
    files.get(str(paths[-1]))
    assert len(files) == OPEN_FILES_MAX
    assert files.get(str(paths[0])) is first
    paths[1].unlink()
    with pytest.raises(FileNotFoundError):
        files.get(str(paths[1]))
    del first
    files.forget()
    assert open_descriptors() == before


def test_a_file_in_use_outlives_its_place_in_the_cache(segment: Path) -> None:
    files = OpenFiles()
    opened = files.get(str(segment))
    files.forget()
    assert os.pread(opened.descriptor, 2, 0) == CONTENT[:2]
    segment.unlink()
    segment.write_bytes(b"another")
    assert os.pread(files.get(str(segment)).descriptor, 7, 0) == b"another"

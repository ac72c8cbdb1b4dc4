"""A law for hostile batches: any bytes give records or a DecodeError, nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    HEADER_BYTES,
    Record,
    build_batch,
    iter_batches,
    iter_records,
)

LIMIT = 100_000
SEEDS = [
    build_batch(
        [Record(timestamp=i, key=b"key", value=b"value" * i, headers=(("h", b"x"),))
         for i in range(5)],
        compression=codec,
    )
    for codec in Compression
]  # fmt: skip


def exhaust(data: bytes) -> None:
    try:
        for position, header in iter_batches(data):
            list(iter_records(data[position : position + header.size], LIMIT))
    except DecodeError:
        pass


@given(data=st.binary(max_size=300))
def test_random_bytes_decode_or_raise_decode_error(data: bytes) -> None:
    exhaust(data)


@given(section=st.binary(max_size=200), codec=st.sampled_from(Compression))
def test_random_records_after_valid_header_decode_or_raise_decode_error(
    section: bytes, codec: Compression
) -> None:
    head = bytearray(SEEDS[codec][:HEADER_BYTES])
    head[8:12] = (HEADER_BYTES - 12 + len(section)).to_bytes(4, "big")
    exhaust(bytes(head) + section)


@given(
    seed=st.sampled_from(SEEDS),
    changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 2**20),
)
def test_mutated_and_truncated_batches_decode_or_raise_decode_error(
    seed: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(seed)
    for position, value in changes:
        data[position % len(data)] = value
    exhaust(bytes(data[: cut % (len(data) + 1)]))
    exhaust(bytes(data))

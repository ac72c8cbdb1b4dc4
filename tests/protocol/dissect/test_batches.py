"""Record batches inside a frame."""

from __future__ import annotations

import pytest

from minibroker_protocol import records
from minibroker_protocol.compression import Compression
from minibroker_protocol.dissect import batches
from minibroker_protocol.dissect.tree import Node

RECORDS = [
    records.Record(0, 1_700_000_000_000, b"k", b"v", (("h", b"x"), ("n", None))),
    records.Record(1, 1_700_000_000_000, None, None),
]


def opened(data: bytes, start: int = 0) -> Node:
    parent = Node("records", start)
    batches.read(bytes(start) + data, start, start + len(data), parent)
    return parent


def test_header_fields_and_records_have_offsets() -> None:
    batch = records.build_batch(RECORDS)
    (node,) = opened(batch, start=5).children
    assert (node.start, node.end) == (5, 5 + len(batch))
    place = 5
    for child in node.children:
        assert child.start == place
        assert child.end is not None
        place = child.end
    assert place == 5 + len(batch)
    assert node.find("attributes").text == "0x0000 none, create time"
    assert (
        node.find("record 0").text == "key 'k', value 'v', 2023-11-14 22:13:20.000Z, h='x', n=null"
    )
    assert node.find("record 1").text.startswith("key null, value null")


@pytest.mark.parametrize("codec", [c for c in Compression if c is not Compression.NONE])
def test_compressed_records_have_no_offsets(codec: Compression) -> None:
    (node,) = opened(records.build_batch(RECORDS, compression=codec)).children
    assert codec.name.lower() in node.find("attributes").text
    assert node.find("record 1").start is None


def test_consecutive_batches_have_their_own_nodes() -> None:
    one = records.build_batch(RECORDS)
    nodes = opened(one + one).children
    assert [node.start for node in nodes] == [0, len(one)]


def test_wrong_checksum_is_reported() -> None:
    batch = bytearray(records.build_batch(RECORDS))
    assert opened(bytes(batch)).find("crc").text.endswith("right")
    batch[17] ^= 1
    assert opened(bytes(batch)).find("crc").text.endswith("WRONG")


def test_corrupt_batch_has_error_at_its_node() -> None:
    batch = records.build_batch(RECORDS)
    assert "cut off" in (opened(batch[:-1]).find("batch").error or "")
    assert opened(b"short").find("batch").error
    lying = bytearray(batch)
    lying[61] = 0x7E  # the first record claims to be longer than the batch
    assert opened(bytes(lying)).find("batch").error
    unclear = bytearray(batch)
    unclear[22] |= 7  # a codec that does not exist
    node = opened(bytes(unclear)).find("batch")
    assert node.error
    assert "codec 7" in node.find("attributes").text

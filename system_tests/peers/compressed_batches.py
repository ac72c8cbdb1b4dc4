"""Batches whose compressed data is built byte by byte: one Produce request for each rule.

Owns the requests and the differences that are intended. Each batch is also written to a topic that
stores records uncompressed, for which a broker reads them another way. Invariant: what Kafka's Java
clients cannot read gets an error from both brokers.
"""

from __future__ import annotations

from typing import Final

from minibroker_protocol.compression import Compression
from minibroker_protocol.records import HEADER_BYTES, Record, build_batch
from system_tests.harness.batches import FIRST_MS, sealed
from system_tests.peers.conversation import SendRequest
from system_tests.peers.records import fetch, produce
from system_tests.peers.topics import create, topic
from tests.protocol.compressed_frames import (
    CompressedFrame,
    compressed_frames,
    frames_that_only_java_reads,
)

VALUES: Final = [bytes([65 + number]) * 200 for number in range(4)]
SECTION: Final = build_batch([Record(timestamp=FIRST_MS, value=value) for value in VALUES])[
    HEADER_BYTES:
]
FRAMES: Final = compressed_frames(SECTION)
ACCEPTED: Final = [frame for frame in FRAMES if frame.content == SECTION]
REJECTED: Final = [frame for frame in FRAMES if frame.content != SECTION]
ONLY_KAFKA_ACCEPTS: Final = frames_that_only_java_reads(SECTION)

KEPT, CONVERTED, REJECTING = "compressed", "converted", "rejecting"
"""Topics for accepted batches, which are stored as they are or uncompressed, and for the rest."""
CONVERSION: Final = {"compression.type": "uncompressed"}


def compressed(ask: SendRequest) -> None:
    ask("made", create(topic(KEPT), topic(CONVERTED, 1, 1, **CONVERSION), topic(REJECTING)), 2)
    ask("another made", create(topic(f"{CONVERTED}-{REJECTING}", 1, 1, **CONVERSION)), 2)
    for frame in ACCEPTED:
        ask(_kept(frame), produce(KEPT, _batch(frame)), 9)
        ask(_converted(frame), produce(CONVERTED, _batch(frame)), 9)
    for frame in (*REJECTED, *ONLY_KAFKA_ACCEPTS):
        ask(_kept(frame), produce(REJECTING, _batch(frame)), 9)
        ask(_converted(frame), produce(f"{CONVERTED}-{REJECTING}", _batch(frame)), 9)
    for name in (KEPT, CONVERTED):
        ask(f"stored in {name}", fetch(name, 0), 12)


def _kept(frame: CompressedFrame) -> str:
    return f"{frame.codec.name}: {frame.name}"


def _converted(frame: CompressedFrame) -> str:
    return f"{_kept(frame)}, converted"


def _batch(frame: CompressedFrame) -> bytes:
    return sealed(frame.data, count=len(VALUES), attributes=int(frame.codec))


CONVERSATIONS: Final = (compressed,)

_KAFKA_REJECTS_RECORDS: Final = {
    "GZIP: second member cut",
    "GZIP: second member with wrong header checksum",
    "SNAPPY: second header with another magic",
    "LZ4: empty block first",
    "LZ4: empty block between",
    "ZSTD: second frame cut",
    "ZSTD: nothing",
}
"""Damaged data that Kafka's readers take for complete data with too few or too many bytes."""

_NOT_DECOMPRESSED: Final = (
    "Kafka fails with an internal error at data that it cannot decompress; here it is invalid"
)

_OVERLOOKED: Final = {
    Compression.GZIP: "Java ignores reserved flags and a last member with a cut or damaged header;"
    " zlib, with which other clients read, does not",
    Compression.SNAPPY: "Java ignores a header that it does not know; other readers take it for a"
    " block",
    Compression.LZ4: "Java ignores the size and the checksum of the content, and blocks behind an"
    " empty one; LZ4's library, with which librdkafka reads, does not",
    Compression.ZSTD: "Java overlooks that a frame is cut if a whole one is in the same buffer;"
    " other readers reject it",
}
"""Why batches are rejected that Kafka accepts."""

INTENDED: Final = {
    (compressed.__name__, name(frame)): reason
    for name in (_kept, _converted)
    for frame, reason in [
        *(
            (frame, _NOT_DECOMPRESSED)
            for frame in REJECTED
            if frame.content is None and _kept(frame) not in _KAFKA_REJECTS_RECORDS
        ),
        *((frame, _OVERLOOKED[frame.codec]) for frame in ONLY_KAFKA_ACCEPTS),
    ]
}
"""The reason of each difference, by conversation and request."""

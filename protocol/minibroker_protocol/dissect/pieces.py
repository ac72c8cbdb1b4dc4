"""Splits a file of bytes into its parts: one frame, several frames, or a log segment.

Owns the recognition. It must never know what a part means. Invariant: the parts of a file are all
of its bytes, in order.
"""

from __future__ import annotations

from minibroker_protocol.dissect import batches
from minibroker_protocol.dissect.tree import Dissection, Node
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.framing import SIZE_BYTES
from minibroker_protocol.records import HEADER_BYTES, parse_batch_header, verify_crc


def is_segment(data: bytes) -> bool:
    """Whether the bytes start with a record batch, as a log segment does."""
    try:
        header = parse_batch_header(data)
    except DecodeError:
        return False
    return verify_crc(data) if header.size <= len(data) else len(data) >= HEADER_BYTES


def dissect_segment(data: bytes) -> Dissection:
    """Take a log segment apart: its batches and their records."""
    root = Node("log segment", 0, len(data), 0, text=f"{len(data)} bytes")
    batches.read(data, 0, len(data), root)
    failed = next((node for node in root.walk() if node.error), None)
    problem = None if failed is None else f"{failed.name}: {failed.error} (at byte {failed.start})"
    return Dissection(data, root, problem)


def frames(data: bytes) -> list[bytes]:
    """The frames that follow each other in ``data``, each with its size before it.

    If the sizes do not lead to the end of ``data``, it counts as one frame.
    """
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + SIZE_BYTES], "big", signed=True)
        end = at + SIZE_BYTES + size
        if size <= 0 or end > len(data):
            return [data]
        found.append(data[at:end])
        at = end
    return found or [data]

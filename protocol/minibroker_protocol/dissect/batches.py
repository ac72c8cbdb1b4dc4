"""Dissects the record batches of a records field.

Owns the layout as a reader needs it: each header field with its position, then the records. Records
of a compressed batch have no position in the frame, so their nodes have none. Everything is read by
`minibroker_protocol.records`, which is loaded only if there are records to show.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from minibroker_protocol.dissect.tree import Node
from minibroker_protocol.dissect.values import describe, moment, preview
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.wire import Malformed, read_varint

# Names as in `records.BatchHeader`, with the bytes that each takes.
_LAYOUT: Final = (
    ("base_offset", 8),
    ("batch_length", 4),
    ("partition_leader_epoch", 4),
    ("magic", 1),
    ("crc", 4),
    ("attributes", 2),
    ("last_offset_delta", 4),
    ("base_timestamp", 8),
    ("max_timestamp", 8),
    ("producer_id", 8),
    ("producer_epoch", 2),
    ("base_sequence", 4),
    ("record_count", 4),
)


def read(data: bytes, start: int, end: int, parent: Node) -> None:
    """Add a node for each batch in ``data[start:end]``; damage becomes a node with an error."""
    from minibroker_protocol import records

    pos = start
    while pos < end:
        batch = Node("batch", pos)
        parent.children.append(batch)
        try:
            header = records.parse_batch_header(data[:end], pos)
        except DecodeError as error:
            batch.error, batch.end, batch.own_end = error.what, end, end
            return
        batch.own_end = pos
        whole = data[pos : min(pos + header.size, end)]
        batch.end = pos + len(whole)
        last = header.last_offset
        batch.text = f"offsets {header.base_offset} to {last}, {header.size} bytes"
        _header(header, pos, whole, batch)
        if len(whole) < header.size:
            batch.error = f"cut off: {header.size} bytes long, {len(whole)} are here"
            return
        _records(header, whole, pos, batch)
        pos = batch.end


def _header(header: Any, pos: int, whole: bytes, batch: Node) -> None:
    from minibroker_protocol import records

    for name, width in _LAYOUT:
        value = getattr(header, name)
        text = describe(name, value)
        if name == "crc":
            good = records.verify_crc(whole) if len(whole) == header.size else None
            text = f"{value:#010x}" + {True: " right", False: " WRONG", None: ""}[good]
        elif name == "attributes":
            text = f"{value:#06x} {_attributes(header)}"
        batch.children.append(Node(name, pos, pos + width, pos + width, text, value))
        pos += width


def _attributes(header: Any) -> str:
    from minibroker_protocol.compression import Compression

    codec = header.codec
    known = codec in list(Compression)
    parts = [Compression(codec).name.lower() if known else f"codec {codec}"]
    parts.append("log append time" if header.timestamp_type else "create time")
    parts += ["transactional"] * header.is_transactional + ["control"] * header.is_control
    return ", ".join(parts)


def _records(header: Any, whole: bytes, pos: int, batch: Node) -> None:
    from minibroker_protocol import records

    places = _places(header, whole, pos)
    try:
        for index, record in enumerate(records.iter_records(whole)):
            start, end = places[index] if index < len(places) else (None, None)
            text = _record_text(record)
            batch.children.append(Node(f"record {record.offset}", start, end, end, text, record))
    except DecodeError as error:
        batch.error = error.what


def _record_text(record: Any) -> str:
    key = "null" if record.key is None else preview(record.key)
    value = "null" if record.value is None else preview(record.value)
    parts = [f"key {key}", f"value {value}", moment(record.timestamp)]
    parts += [f"{name}={'null' if v is None else preview(v)}" for name, v in record.headers]
    return ", ".join(part for part in parts if part)


def _places(header: Any, whole: bytes, pos: int) -> list[tuple[int, int]]:
    """Return the positions of records in the frame; empty if the batch is compressed."""
    if header.codec:
        return []
    places = []
    at = sum(width for _, width in _LAYOUT)
    # Errors of a record are reported where it is decoded; here they only end the search.
    with contextlib.suppress(IndexError, Malformed):
        while at < len(whole):
            length, body = read_varint(whole, at)
            if length < 0:
                break
            places.append((pos + at, pos + body + length))
            at = body + length
    return places

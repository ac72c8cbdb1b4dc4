"""Entries for tests of the journal."""

from __future__ import annotations

from typing import Any

from minibroker.lab.journal.entries import EntryKind, JournalEntry
from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import RequestHeader, encode_request_header, encode_response_header


def request_entry(group: str = "g", client_id: str = "c", **fields: Any) -> JournalEntry:
    """A Heartbeat request of version 4."""
    header = encode_request_header(RequestHeader(ApiKey.HEARTBEAT, 4, 7, client_id))
    frame = header + encode(HeartbeatRequest(group_id=group, member_id="m"), 4)
    return entry_of("request", frame, client_id=client_id, **fields)


def response_entry(error_code: int = 0, **fields: Any) -> JournalEntry:
    """Its response."""
    header = encode_response_header(ApiKey.HEARTBEAT, 4, 7)
    return entry_of(
        "response", header + encode(HeartbeatResponse(error_code=error_code), 4), **fields
    )


def metadata_entry(topic: str, **fields: Any) -> JournalEntry:
    """A Metadata request of version 1."""
    header = encode_request_header(RequestHeader(ApiKey.METADATA, 1, 8, "c"))
    body = encode(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 1)
    return entry_of("request", header + body, **{"api": "Metadata", "version": 1, **fields})


def entry_of(kind: str, frame: bytes | None = None, **fields: Any) -> JournalEntry:
    """An entry of a kind."""
    known: dict[str, Any] = {"sequence": 1, "clock_ms": 0.0, "role": "processor-0"}
    if frame is not None:
        known |= {"connection": "5", "api": "Heartbeat", "version": 4, "correlation_id": 7}
        known |= {"frame": frame, "frame_bytes": len(frame)}
    return JournalEntry(kind=EntryKind(kind), **{**known, **fields})

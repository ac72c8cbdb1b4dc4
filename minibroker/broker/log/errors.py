"""The exception by which a partition log rejects a request.

Owns its shape: Kafka's error code, the message and the records that caused it. It must
never carry more state, because it crosses processes. Invariant: it survives pickling. Echoes the
``ApiException`` family and ``RecordValidationException``.
"""

from __future__ import annotations

from typing import NamedTuple

from minibroker_protocol.errors import ErrorCode


class RecordError(NamedTuple):
    """A record that caused a rejection: its position in the batch, from 0, and the reason."""

    position: int
    text: str


class LogError(Exception):
    """A rejected append or read: Kafka's error code, and what failed, where and how to fix it.

    ``records`` are the records that caused it, ascending; empty if no single record did.
    """

    def __init__(self, code: ErrorCode, text: str, records: tuple[RecordError, ...] = ()) -> None:
        super().__init__(code, text, records)
        self.code = code
        self.text = text
        self.records = records

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"


class NotOneBatchError(LogError):
    """Records that are not one batch of the accepted format; the log does not see them."""

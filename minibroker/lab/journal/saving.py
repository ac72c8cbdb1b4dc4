"""Entries and records of the journal as bytes, to survive the process that has them.

Owns their form. It must never know where the bytes are kept. Invariant: what is read is what was
written, and any other bytes are ``ValueError``. For processes of one run only, as packed records.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, Final, TypeVar

from minibroker.lab.journal.buffer import JournalChunk
from minibroker.lab.journal.entries import EntryKind, JournalEntry
from minibroker.lab.journal.records import PackedRecords

T = TypeVar("T")

_ENTRY: Final = tuple(each.name for each in fields(JournalEntry))
_KIND: Final = _ENTRY.index("kind")
_CHUNK: Final = tuple(each.name for each in fields(JournalChunk))
_PARTS: Final = _CHUNK.index("parts")


def saved(entries: Iterable[JournalEntry]) -> bytes:
    """Return entries as bytes."""
    return marshal.dumps([_plain(entry) for entry in entries])


def _plain(entry: JournalEntry) -> list[Any]:
    values: list[Any] = [getattr(entry, name) for name in _ENTRY]
    values[_KIND] = entry.kind.value
    return values


def restored(data: bytes) -> list[JournalEntry]:
    """Return the entries of these bytes. Raises ``ValueError``."""
    return _restored(data, _entry)


def _entry(values: list[Any]) -> JournalEntry:
    values[_KIND] = EntryKind(values[_KIND])
    return JournalEntry(*values)


def saved_chunks(chunks: Iterable[JournalChunk]) -> bytes:
    """Return chunks as bytes."""
    return marshal.dumps([_plain_chunk(chunk) for chunk in chunks])


def _plain_chunk(chunk: JournalChunk) -> list[Any]:
    values: list[Any] = [getattr(chunk, name) for name in _CHUNK]
    values[_PARTS] = [tuple(part) for part in chunk.parts]
    return values


def restored_chunks(data: bytes) -> list[JournalChunk]:
    """Return the chunks of these bytes. Raises ``ValueError``."""
    return _restored(data, _chunk)


def _chunk(values: list[Any]) -> JournalChunk:
    values[_PARTS] = tuple(PackedRecords(*part) for part in values[_PARTS])
    return JournalChunk(*values)


def _restored(data: bytes, make: Callable[[list[Any]], T]) -> list[T]:
    try:
        return [make(values) for values in marshal.loads(data)]  # noqa: S302 - of this broker
    except (EOFError, TypeError, LookupError) as error:
        raise ValueError(f"not a part of a journal: {error}") from None

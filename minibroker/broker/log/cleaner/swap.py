"""The replacement of segments by their cleaned copy, in steps that survive a killed process.

Owns the names and the order of the steps. It must never know what is in the files. Invariant: at
every step, the directory has either all old segments of a group or a complete copy of them, and
``complete_swaps`` finishes or undoes the replacement. Echoes ``LocalLog.replaceSegments`` and
``LogLoader``.

``.cleaned`` files are incomplete until all of them are renamed to ``.swap``, the ``.log`` last.
Then the old segments are removed, and ``.swap`` is removed from the names, again from the ``.log``
last. A copy keeps the last batch of its group, so its end tells which segments it replaces. The
old ``.log`` files are renamed, with their inode in the name, until readers have sent what they
took from them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from minibroker.broker.log.paths import (
    LOG,
    OFFSET_INDEX,
    REPLACED,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_file,
    offsets_of,
    remove_files,
    replaced_path,
)
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import HEADER_BYTES, parse_batch_header

CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
"""Kafka's suffixes."""

_INDEXES: Final = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)


def commit(directory: str, base_offset: int) -> None:
    """Make the cleaned copy of a group valid. Raises OSError."""
    _rename(directory, base_offset, CLEANED, SWAP)


def install(directory: str, base_offset: int, replaced: list[int]) -> list[str]:
    """Put a committed copy in the place of the segments with these base offsets.

    Returns the new paths of their ``.log`` files, which the caller removes later. Raises OSError.
    """
    renamed = []
    for old in replaced:
        if old != base_offset:  # Before the log, whose name shows that this is not finished.
            remove_files(directory, old, _INDEXES)
        path = offset_file(directory, old, LOG)
        with suppress(FileNotFoundError):
            target = replaced_path(path, os.stat(path).st_ino)
            os.rename(path, target)
            renamed.append(target)
    _rename(directory, base_offset, SWAP, "")
    return renamed


def _rename(directory: str, base_offset: int, before: str, after: str) -> None:
    """Rename the files of a copy, the ``.log`` last."""
    for suffix in (*_INDEXES, LOG):
        source = offset_file(directory, base_offset, suffix + before)
        target = offset_file(directory, base_offset, suffix + after)
        if suffix == LOG:
            os.rename(source, target)
        else:
            with suppress(FileNotFoundError):
                os.rename(source, target)


def discard(directory: str) -> None:
    """Remove the copies that were not committed. Raises OSError."""
    _remove_ending(directory, (CLEANED,))


def complete_swaps(directory: str) -> None:
    """Finish the committed replacements and undo the others, before a log is opened.

    Raises OSError.
    """
    names = os.listdir(directory)
    if not any(name.endswith((CLEANED, SWAP, REPLACED)) for name in names):
        return
    for base_offset in offsets_of(directory, LOG + SWAP):
        end_offset = _end_offset(offset_file(directory, base_offset, LOG + SWAP), base_offset)
        bases = offsets_of(directory, LOG)
        install(
            directory, base_offset, [base for base in bases if base_offset <= base < end_offset]
        )
    _remove_ending(directory, (CLEANED, SWAP, REPLACED))


def _remove_ending(directory: str, suffixes: tuple[str, ...]) -> None:
    for name in os.listdir(directory):
        if name.endswith(suffixes):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))


def _end_offset(path: str, base_offset: int) -> int:
    """The offset after the last batch of a copy."""
    end_offset = base_offset
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        position = 0
        while position < size:
            try:
                header = parse_batch_header(os.pread(file.fileno(), HEADER_BYTES, position))
            except DecodeError as error:
                raise OSError(f"{path} is damaged at position {position}: {error}") from error
            end_offset = header.next_offset
            position += header.size
    return max(end_offset, base_offset + 1)

"""Names of a partition's directory and of the files in it, and the replacement of its segments.

Owns Kafka's names, the removal of a directory, which is renamed first and removed later, and the
steps in which a cleaned copy replaces segments. It must never know what is in the files.
Invariants: every name that is created here can be parsed here, and only a directory with a topic id
is ever removed; at every step of a replacement, the directory has either all old segments of a
group or a complete copy of them, and ``complete_swaps`` finishes or undoes it after a kill. Echoes
``LogFileUtils``, ``LocalLog.replaceSegments`` and ``LogLoader``.

``.cleaned`` files are incomplete until all of them are renamed to ``.swap``, the ``.log`` last.
Then the old segments are removed, and ``.swap`` is removed from the names, again from the ``.log``
last. A copy keeps the last batch of its group, so its end tells which segments it replaces. The
old ``.log`` files are renamed, with their inode in the name, until readers have sent what they
took from them.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from minibroker.broker.log.errors import NO_SPACE_ERRNOS
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import HEADER_BYTES, parse_batch_header

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)

PARTITION_METADATA: Final = "partition.metadata"
"""Contains the topic id of a partition's directory."""

ANY_INODE: Final = 0
"""The inode of a slice that is read from any file with its path."""

REPLACED: Final = ".deleted"
"""Kafka's suffix of a segment file that was replaced and is removed later."""

DELETED: Final = "-delete"
STRAY: Final = "-stray"
"""Kafka's suffixes of directories that will be removed, and of those that belong to no topic."""

TEMPORARY: Final = ".tmp"
"""Suffix of a file that is about to replace another."""

SMALL_FILE_BYTES_MAX: Final = 64 * 1024
"""Bytes that are read of a file with a few lines."""

PARTITION_NUMBER_MAX: Final = 2**31 - 1
_NUMBER_DIGITS_MAX: Final = len(str(PARTITION_NUMBER_MAX))
_DELETED_DIRECTORY: Final = re.compile(rf".+\.[0-9a-f]{{32}}{DELETED}")
_OFFSET_DIGITS: Final = 20
_NAME_MAX: Final = 255


def partition_directory(data_dir: str | os.PathLike[str], topic: str, partition: int) -> str:
    """The path of a partition's directory."""
    return os.path.join(data_dir, f"{topic}-{partition}")


def parse_directory(name: str) -> tuple[str, int] | None:
    """(topic, partition) of a directory with this name, or None for any other name."""
    topic, dash, digits = name.rpartition("-")
    if not (topic and dash and digits.isascii() and digits.isdigit()):
        return None
    if len(digits) > _NUMBER_DIGITS_MAX:
        return None
    number = int(digits)
    return (topic, number) if str(number) == digits and number <= PARTITION_NUMBER_MAX else None


def offset_file(directory: str, offset: int, suffix: str) -> str:
    """The path of a file that is named after an offset: 20 digits, then the suffix."""
    return f"{directory}/{offset:0{_OFFSET_DIGITS}d}{suffix}"


def replaced_path(path: str, inode: int) -> str:
    """The name of a segment file after a cleaned copy has taken its name."""
    return f"{path}.{inode}{REPLACED}"


def open_segment(path: str, inode: int) -> int:
    """Open the file with this inode, also if a cleaned copy has taken its name since.

    Raises FileNotFoundError if it was removed, and OSError.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    fd = os.open(path, flags)
    if inode in (ANY_INODE, os.fstat(fd).st_ino):
        return fd
    os.close(fd)
    return os.open(replaced_path(path, inode), flags)


def offsets_of(directory: str, suffix: str) -> list[int]:
    """The offsets in the names of the directory's files with this suffix, ascending."""
    offsets = []
    for name in os.listdir(directory):
        stem, dot, rest = name.partition(".")
        if dot + rest == suffix and len(stem) == _OFFSET_DIGITS and stem.isdigit():
            offsets.append(int(stem))
    return sorted(offsets)


def _open_nofollow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)


def read_small_file(path: str | os.PathLike[str], size: int = SMALL_FILE_BYTES_MAX) -> bytes:
    """The first ``size`` bytes of a regular file. Raises OSError, also for a symbolic link."""
    with open(path, "rb", opener=_open_nofollow) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        return file.read(size)


@contextmanager
def opened(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """The descriptor of a file, closed at the end. Raises OSError."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def write_file(path: str, data: bytes) -> None:
    """Write a whole file, in fewer steps than ``open`` takes. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        if os.write(fd, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(fd)


def replace_file(path: str, text: str, *, sync: bool) -> None:
    """Replace a file completely or not at all; with ``sync`` its content is on disk first.

    Raises OSError.
    """
    temporary = path + TEMPORARY
    try:
        with open(temporary, "w", encoding="utf-8", opener=_open_nofollow) as file:
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if (
            error.errno in NO_SPACE_ERRNOS
        ):  # The incomplete file takes space that is needed elsewhere.
            with suppress(OSError):
                os.unlink(temporary)
        raise


def remove_files(directory: str, offset: int, suffixes: tuple[str, ...]) -> None:
    """Remove the files of one offset that exist."""
    for suffix in suffixes:
        try:
            os.unlink(offset_file(directory, offset, suffix))
        except FileNotFoundError:
            continue


def rename_directory(directory: str, suffix: str = DELETED) -> str:
    """Rename a partition's directory so that its name can be used again; returns the new path.

    ``remove_renamed`` removes a DELETED directory. A STRAY one remains until the user removes it.
    Echoes ``LocalLog.logDirNameWithSuffixCap``.
    """
    parent, name = os.path.split(directory)
    full_suffix = f".{secrets.token_hex(16)}{suffix}"
    renamed = os.path.join(parent, name[: _NAME_MAX - len(full_suffix)] + full_suffix)
    os.rename(directory, renamed)
    return renamed


def remove_renamed(path: str) -> bool:
    """Remove a renamed directory; returns False if a file could not be removed.

    The topic id is removed last, so that an interrupted removal can be continued. Subdirectories
    were not created by the broker and remain.
    """
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name != PARTITION_METADATA and not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(path, PARTITION_METADATA))
        os.rmdir(path)
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTEMPTY)
    return True


def list_deleted(data_dir: str | os.PathLike[str]) -> list[str]:
    """Directories that were renamed to be removed and still exist, for example after a crash."""
    return [
        entry.path
        for entry in os.scandir(data_dir)
        if _DELETED_DIRECTORY.fullmatch(entry.name)
        and entry.is_dir(follow_symlinks=False)
        and os.path.lexists(os.path.join(entry.path, PARTITION_METADATA))
    ]


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

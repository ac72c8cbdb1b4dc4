"""How a partition's directory and the files in it are called.

Owns Kafka's names, and the way a directory leaves: renamed first, removed whenever convenient. It
must never know what is in the files. Its invariant: every name made here is parsed here. Echoes
``LogFileUtils`` and ``LocalLog.parseTopicPartitionName``.
"""

from __future__ import annotations

import os
import secrets
import shutil
from typing import Final

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX)

_DELETED_DIRECTORY: Final = "-delete"
_OFFSET_DIGITS: Final = 20
_NAME_MAX: Final = 255


def partition_directory(data_dir: str | os.PathLike[str], topic: str, partition: int) -> str:
    """Where a partition's files are."""
    return os.path.join(data_dir, f"{topic}-{partition}")


def parse_directory(name: str) -> tuple[str, int] | None:
    """(topic, partition) that a directory's name stands for, or None for any other name."""
    topic, dash, number = name.rpartition("-")
    if not (topic and dash and number.isascii() and number.isdigit()):
        return None
    return topic, int(number)


def has_directory(data_dir: str | os.PathLike[str], topic: str) -> bool:
    """Whether any partition of a topic has files."""
    found = map(parse_directory, os.listdir(data_dir))
    return any(partition is not None and partition[0] == topic for partition in found)


def offset_file(directory: str, offset: int, suffix: str) -> str:
    """The path of a file that is named by an offset: 20 digits, then the suffix."""
    return f"{directory}/{offset:0{_OFFSET_DIGITS}d}{suffix}"


def offsets_of(directory: str, suffix: str) -> list[int]:
    """The offsets that the directory's files with this suffix are named by, ascending."""
    found = []
    for name in os.listdir(directory):
        stem, dot, rest = name.partition(".")
        if dot + rest == suffix and len(stem) == _OFFSET_DIGITS and stem.isdigit():
            found.append(int(stem))
    return sorted(found)


def remove_files(directory: str, offset: int, suffixes: tuple[str, ...]) -> None:
    """Remove the files of one offset; those that are gone already are no error."""
    for suffix in suffixes:
        try:
            os.unlink(offset_file(directory, offset, suffix))
        except FileNotFoundError:
            continue


def set_aside(directory: str) -> str:
    """Rename a partition's directory so that its name is free at once; returns the new path.

    ``remove_aside`` takes it away, after a delay if readers may still be at it.
    """
    parent, name = os.path.split(directory)
    ending = f".{secrets.token_hex(16)}{_DELETED_DIRECTORY}"
    aside = os.path.join(parent, name[: _NAME_MAX - len(ending)] + ending)
    os.rename(directory, aside)
    return aside


def remove_aside(path: str) -> None:
    """Remove what ``set_aside`` renamed; gone already is no error."""
    shutil.rmtree(path, ignore_errors=True)


def list_aside(data_dir: str | os.PathLike[str]) -> list[str]:
    """Directories that were set aside and not removed, perhaps by a process that was killed."""
    return [
        entry.path
        for entry in os.scandir(data_dir)
        if entry.name.endswith(_DELETED_DIRECTORY) and entry.is_dir(follow_symlinks=False)
    ]

"""The ``meta.properties`` of a data directory: the cluster and the node that own its files.

Owns the file and the decision whether a broker may use the directory. It must never know what is in
a partition's segments. Invariant: a directory that no minibroker used is not changed unless it is
empty, and the file is replaced completely or not at all. Echoes Kafka's ``MetaProperties`` and
``MetaPropertiesEnsemble``.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from minibroker.broker.log.checkpoint import has_checkpoint, read_topic_id
from minibroker.broker.log.paths import (
    SMALL_FILE_BYTES_MAX,
    TEMPORARY,
    parse_directory,
    read_small_file,
    replace_file,
)
from minibroker.runtime.system import LOCK_FILE
from minibroker_protocol.types import Uuid, uuid_from_text, uuid_text

META_PROPERTIES: Final = "meta.properties"
STORE_FILE: Final = "config.sqlite"
"""The embedded config store."""

SESSION_FILE: Final = "zookeeper.session"
"""The ZooKeeper session of the broker that uses this directory."""

SECRET_FILE: Final = ".secret"  # noqa: S105 - a name
"""A secret of the broker that uses the directory, to derive values that cannot be predicted."""

SECRET_BYTES: Final = 32

DIRECTORY_MODE: Final = 0o700

_KAFKA_FILES: Final = frozenset({
    ".kafka_cleanshutdown",
    "__cluster_metadata-0",
    "bootstrap.checkpoint",
    "cleaner-offset-checkpoint",
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
})  # fmt: skip
"""Files of Apache Kafka's log directories; minibroker writes none of them."""

_IGNORED_NAMES: Final = frozenset({"lost+found"})
FAULT_RULES_FILE: Final = ".fault-rules"
FAULT_COUNTS_FILE: Final = ".fault-counts"
"""Fault rules of a running broker, for its next controller."""

JOURNAL_FILE: Final = ".journal"
"""The journal of a controller that was killed by request; with a role, what that had recorded."""

_LOCK_TEXT: Final = b"pid "
_SECRET_FILES: Final = (SECRET_FILE, SECRET_FILE + TEMPORARY)
_STORE_SCHEMA: Final = b"CREATE TABLE node (\n    path TEXT PRIMARY KEY"
"""The first words of a config store's schema, which SQLite keeps unchanged in the file."""

_STORE_WAL: Final = f"{STORE_FILE}-wal"
_STORE_HEAD_BYTES: Final = 64 * 1024
"""SQLite keeps the schema in the first page of a file, and a new one at the start of the log."""

_SQLITE_TEXT: Final = b"SQLite format 3\x00"
_SQLITE_TABLE_COUNT: Final = slice(103, 105)
"""Where a file without tables has zeros: the number of cells in its first page."""

_WAL_HEADER_BYTES: Final = 32
_SESSION_TEXT: Final = b'{"session": '
_VERSION: Final = "1"
_NAMES_SHOWN_MAX: Final = 3
_UUID_BYTES: Final = 16


class DataDirectoryError(Exception):
    """The directory cannot be used; the message says why and how to continue."""


class MetaProperties(NamedTuple):
    """The content of ``meta.properties``, version 1 (KRaft's)."""

    cluster_id: str
    node_id: int
    directory_id: Uuid | None = None
    """None in a file without a readable id; a new one is written for it."""


class LoggedTopic(NamedTuple):
    """A topic of which the directory has partitions: its id and their numbers, ascending."""

    topic_id: Uuid
    partitions: tuple[int, ...]


def ignores_case(directory: Path) -> bool:
    """Whether names that differ only in case are one file here, as they are on macOS by default."""
    for path in (*directory.iterdir(), directory):
        other = path.with_name(path.name.swapcase())
        if other != path and other.exists():
            return other.samefile(path)
    return False


def check_data_directory(directory: Path, node_id: int, *, needs_store: bool) -> None:
    """Raise DataDirectoryError unless a broker with ``node_id`` may use ``directory``.

    It may if the directory is empty, has this node's ``meta.properties``, or was used by a
    minibroker version that did not write that file. With ``needs_store`` a used directory must have
    its config store. Nothing is written.
    """
    names = _list_content(directory)
    if not names:
        return
    kafka = sorted(_KAFKA_FILES.intersection(names))
    if kafka:
        raise DataDirectoryError(
            f"{directory} is a log directory of Apache Kafka, as it has {kafka[0]}: use a new or "
            "an empty directory"
        )
    meta = read_meta_properties(directory)
    if meta is None and not _was_used(directory):
        shown = ", ".join(names[:_NAMES_SHOWN_MAX])
        hidden = f" and {len(names) - _NAMES_SHOWN_MAX} more" if names[_NAMES_SHOWN_MAX:] else ""
        raise DataDirectoryError(
            f"{directory} is not empty and was not created by a broker, as it has no "
            f"{META_PROPERTIES} (it contains {shown}{hidden}): use a new or an empty directory"
        )
    if meta is not None and meta.node_id != node_id:
        raise DataDirectoryError(
            f"{directory} belongs to node {meta.node_id} of cluster {meta.cluster_id}, and "
            f"this broker is node {node_id}: set node.id={meta.node_id} or use another directory"
        )
    if needs_store and not _has_store(directory):
        _check_lost_store(directory, meta)


def _check_lost_store(directory: Path, meta: MetaProperties | None) -> None:
    topics = logged_topics(directory)
    if meta is None and not topics:
        return  # A broker was killed during its first start.
    owner = "" if meta is None else f" of cluster {meta.cluster_id}"
    partitions = sum(len(logged.partitions) for logged in topics.values())
    raise DataDirectoryError(
        f"the config store {directory / STORE_FILE}{owner} is missing or damaged, and the "
        f"directory has {partitions} partitions of {len(topics)} topics: restore the store from a "
        f"backup, or remove {STORE_FILE} and {_STORE_WAL} and start once with "
        "--recover-topics-from-logs, which rebuilds the topics but not their configs, nor quotas, "
        "users and ACLs"
    )


def lacks_meta_properties(directory: Path) -> bool:
    """Whether an earlier version used the directory, which did not write ``meta.properties``."""
    return read_meta_properties(directory) is None and _was_used(directory)


def _list_content(directory: Path) -> list[str]:
    """The names in a directory, except those that do not count as content."""
    names = [name for name in os.listdir(directory) if name not in _IGNORED_NAMES]
    return sorted(name for name in names if not _is_startup_file(directory / name))


def _is_startup_file(path: Path) -> bool:
    """Whether a broker wrote the file before it had a config store."""
    try:
        if path.name == LOCK_FILE:
            text = read_small_file(path)
            return not text or text.startswith(_LOCK_TEXT)
        return path.name in _SECRET_FILES and len(read_small_file(path)) in (0, SECRET_BYTES)
    except OSError:
        return False


def _was_used(directory: Path) -> bool:
    """Whether files that only a minibroker writes are in the directory."""
    return (
        _has_store(directory)
        or _has_empty_store(directory)
        or _read_start(directory / SESSION_FILE).startswith(_SESSION_TEXT)
        or any(has_checkpoint(path) for path, _, _ in _identified_partitions(directory))
    )


def _has_store(directory: Path) -> bool:
    """Whether the directory has a config store, possibly only in SQLite's write-ahead log."""
    files = (directory / STORE_FILE, directory / _STORE_WAL)
    return any(_STORE_SCHEMA in _read_start(path, _STORE_HEAD_BYTES) for path in files)


def _has_empty_store(directory: Path) -> bool:
    """Whether the store has no tables: the broker was killed before it wrote the schema."""
    try:
        head = read_small_file(directory / STORE_FILE, _SQLITE_TABLE_COUNT.stop)
    except OSError:
        return False
    is_empty = head.startswith(_SQLITE_TEXT) and not any(head[_SQLITE_TABLE_COUNT])
    return (not head or is_empty) and len(_read_start(directory / _STORE_WAL)) <= _WAL_HEADER_BYTES


def _read_start(path: Path, size: int = SMALL_FILE_BYTES_MAX) -> bytes:
    try:
        return read_small_file(path, size)
    except OSError:
        return b""


def read_meta_properties(directory: Path) -> MetaProperties | None:
    """The properties, or None without the file. Raises DataDirectoryError if it is malformed."""
    path = directory / META_PROPERTIES
    try:
        text = read_small_file(path).decode("latin-1")
        import javaproperties  # It takes 25 ms, which a start without the file avoids.

        properties: Mapping[str, str] = javaproperties.loads(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataDirectoryError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataDirectoryError(f"{path} cannot be read: {error}") from None
    version, cluster_id = properties.get("version", ""), properties.get("cluster.id", "")
    node_id = properties.get("node.id", "")
    if version != _VERSION:
        raise DataDirectoryError(
            f"{path} has version {version or 'none'} instead of {_VERSION}: this broker did "
            "not write it; use another directory"
        )
    if not cluster_id or not (node_id.isascii() and node_id.isdigit()):
        raise DataDirectoryError(
            f"{path} names no cluster.id and node.id: restore the file or use another directory"
        )
    return MetaProperties(cluster_id, int(node_id), _directory_id(properties))


def _directory_id(properties: Mapping[str, str]) -> Uuid | None:
    try:
        return uuid_from_text(properties.get("directory.id", ""))
    except ValueError:
        return None


def write_meta_properties(directory: Path, meta: MetaProperties) -> Uuid:
    """Write the properties, with a new id if they have none; return the id.

    They are on disk when this returns. Raises OSError.
    """
    directory_id = meta.directory_id or secrets.token_bytes(_UUID_BYTES)
    document = {
        "version": _VERSION,
        "cluster.id": meta.cluster_id,
        "node.id": str(meta.node_id),
        "directory.id": uuid_text(directory_id),
    }
    path = directory / META_PROPERTIES
    lines = (f"{name}={_escape(value)}\n" for name, value in document.items())
    replace_file(str(path), "".join(lines), sync=True)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)  # so that the new file name survives a crash, too
    finally:
        os.close(fd)
    return directory_id


def _escape(value: str) -> str:
    """A value in the syntax of ``java.util.Properties``, whose escapes JSON has too."""
    return json.dumps(value)[1:-1].replace(" ", "\\u0020")


def logged_topics(directory: Path) -> dict[str, LoggedTopic]:
    """The topics of which the directory has partitions with a topic id, by name.

    If partitions of a topic carry different ids, the id that most of them carry counts.
    """
    properties: dict[str, list[tuple[int, Uuid]]] = {}
    for _, (topic, partition), topic_id in _identified_partitions(directory):
        properties.setdefault(topic, []).append((partition, topic_id))
    topics = {}
    for topic, marked in sorted(properties.items()):
        ((topic_id, _),) = Counter(topic_id for _, topic_id in sorted(marked)).most_common(1)
        topics[topic] = LoggedTopic(
            topic_id, tuple(sorted(number for number, marked_id in marked if marked_id == topic_id))
        )
    return topics


def _identified_partitions(directory: Path) -> Iterator[tuple[str, tuple[str, int], Uuid]]:
    """(path, (topic, partition), topic id) of each partition directory with a topic id."""
    for entry in list(os.scandir(directory)):
        partition = parse_directory(entry.name)
        if partition is not None and entry.is_dir(follow_symlinks=False):
            topic_id = read_topic_id(entry.path)
            if topic_id is not None:
                yield entry.path, partition, topic_id

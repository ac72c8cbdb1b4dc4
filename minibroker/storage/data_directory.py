"""The mark of a data directory: which cluster and which node own the files in it.

Owns ``meta.properties`` of a data directory and the decision whether a broker may use the
directory. It must never know what is in a partition's segments. Invariant: a directory that is
neither empty nor marked is not changed, and the mark is replaced completely or not at all. Echoes
Kafka's ``MetaProperties`` and ``MetaPropertiesEnsemble``.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import javaproperties

from minibroker.storage.checkpoint import read_topic_id
from minibroker.storage.paths import parse_directory
from protocol.types import Uuid, uuid_text

META_PROPERTIES: Final = "meta.properties"
STORE_FILE: Final = "config.sqlite"
"""The embedded config store."""

SESSION_FILE: Final = "zookeeper.session"
"""The ZooKeeper session of the broker that uses this directory."""

SECRET_FILE: Final = ".secret"  # noqa: S105 - a name
"""A secret of the broker that uses the directory, for what must not be predictable."""

DIRECTORY_MODE: Final = 0o700

_NOT_CONTENT: Final = frozenset({".lock", SECRET_FILE, "lost+found"})
_WRITTEN_BEFORE_MARKS: Final = (STORE_FILE, SESSION_FILE)
"""Files that identify a directory of a minibroker version that wrote no ``meta.properties``."""

_SQLITE_HEADER: Final = b"SQLite format 3\x00"
_VERSION: Final = "1"
_NAMES_SHOWN_MAX: Final = 3
_UUID_BYTES: Final = 16


class DataDirectoryError(Exception):
    """The directory cannot be used; the message says why and how to continue."""


class MetaProperties(NamedTuple):
    """The content of ``meta.properties``, version 1 (KRaft's)."""

    cluster_id: str
    node_id: int


class LoggedTopic(NamedTuple):
    """A topic of which the directory has partitions: its id and their numbers, ascending."""

    topic_id: Uuid
    partitions: tuple[int, ...]


def check_data_directory(directory: Path, node_id: int) -> None:
    """Raise DataDirectoryError unless a broker with ``node_id`` may use ``directory``.

    It may if the directory is empty, or marked as this node's. Nothing is written.
    """
    meta = read_meta_properties(directory)
    if meta is not None:
        if meta.node_id != node_id:
            raise DataDirectoryError(
                f"{directory} belongs to node {meta.node_id} of cluster {meta.cluster_id}, and "
                f"this broker is node {node_id}: set node.id={meta.node_id} or use another "
                "directory"
            )
        return
    names = sorted(name for name in os.listdir(directory) if name not in _NOT_CONTENT)
    if not names or _is_unmarked_broker(directory):
        return
    shown = ", ".join(names[:_NAMES_SHOWN_MAX])
    more = f" and {len(names) - _NAMES_SHOWN_MAX} more" if len(names) > _NAMES_SHOWN_MAX else ""
    raise DataDirectoryError(
        f"{directory} is not empty and was not created by a broker, as it has no "
        f"{META_PROPERTIES} (it contains {shown}{more}): use a new or an empty directory"
    )


def _is_unmarked_broker(directory: Path) -> bool:
    store, session = (directory / name for name in _WRITTEN_BEFORE_MARKS)
    if session.is_file():
        return True
    try:
        with open(store, "rb") as file:
            return file.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER
    except FileNotFoundError:
        return False


def read_meta_properties(directory: Path) -> MetaProperties | None:
    """The directory's mark, or None without one. Raises DataDirectoryError if it is malformed."""
    path = directory / META_PROPERTIES
    try:
        with open(path, encoding="latin-1") as file:
            found: Mapping[str, str] = javaproperties.load(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataDirectoryError(f"{path} cannot be read: {error}") from None
    # Version 0 is that of Kafka's ZooKeeper mode, which calls the node a broker.
    node_id = found.get("node.id", found.get("broker.id", ""))
    cluster_id = found.get("cluster.id", "")
    if not cluster_id or not (node_id.isascii() and node_id.isdigit()):
        raise DataDirectoryError(
            f"{path} names no cluster.id and node.id: restore the file or use another directory"
        )
    return MetaProperties(cluster_id, int(node_id))


def write_meta_properties(directory: Path, meta: MetaProperties) -> None:
    """Mark the directory; the mark is on disk when this returns. Raises OSError."""
    document = {
        "version": _VERSION,
        "cluster.id": meta.cluster_id,
        "node.id": str(meta.node_id),
        "directory.id": uuid_text(secrets.token_bytes(_UUID_BYTES)),
    }
    path = directory / META_PROPERTIES
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w", encoding="latin-1") as file:
        javaproperties.dump(document, file, timestamp=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def logged_topics(directory: Path) -> dict[str, LoggedTopic]:
    """The topics of which the directory has marked partitions, by name.

    If partitions of a topic carry different ids, the id that most of them carry counts.
    """
    found: dict[str, list[tuple[int, Uuid]]] = {}
    for entry in os.scandir(directory):
        parsed = parse_directory(entry.name)
        if parsed is None or not entry.is_dir(follow_symlinks=False):
            continue
        topic_id = read_topic_id(entry.path)
        if topic_id is not None:
            topic, partition = parsed
            found.setdefault(topic, []).append((partition, topic_id))
    topics = {}
    for topic, marked in sorted(found.items()):
        ((topic_id, _),) = Counter(topic_id for _, topic_id in sorted(marked)).most_common(1)
        topics[topic] = LoggedTopic(
            topic_id, tuple(sorted(number for number, each in marked if each == topic_id))
        )
    return topics

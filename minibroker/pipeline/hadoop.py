"""Files on any of Hadoop's file systems: a disk, HDFS, an object store.

Owns the few operations that a table's ledger needs, run by the driver through Spark's JVM; on a
local disk the frequent ones bypass Hadoop, at a tenth of the cost. It must never know the files'
contents. Invariant: every path is relative to the root, and every failure is an error, where Hadoop
often only returns false. Tasks read through Spark, and write through Spark or, on a disk, directly.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from minibroker.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DISK: Final = "file:"
ANOTHER: Final = "another job writes to the table: stop one of them and run the other again"
PLAIN: Final = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""Settings for writing. Without them Hadoop keeps a checksum file for each file on a disk, and runs
an additional ``chmod`` for it.
"""

LOCK: Final = "_writer"
"""Holds the process id of the writing job, which keeps the file locked while it runs."""

OFFSETS: Final = "offsets"
COMMITTED: Final = "commits"
"""Folders of a Spark checkpoint with a file for each batch, named by its number: written when the
batch is planned and when it is done.
"""


class Files:
    """The files below a root, which need not exist yet."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no other way to Hadoop's classes
        # Each look-up of a name searches every jar, part by part.
        self._new_path: Any = jvm.org.apache.hadoop.fs.Path
        self._text_of: Any = jvm.org.apache.commons.io.IOUtils.toString
        shared: Any = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        configuration = jvm.org.apache.hadoop.conf.Configuration(shared)
        for key, value in PLAIN.items():
            configuration.set(key, value)
        path = self._new_path(root)
        self._fs: Any = path.getFileSystem(configuration)
        self.root: str = self._fs.makeQualified(path).toString()
        self.folder: str | None = None
        """The root on a local disk, or None."""
        if self.root.startswith(_DISK):
            self.folder = self.root.removeprefix(_DISK)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the writer lock, or raise PipelineError; only a local disk has one."""
        if self.folder is None:
            yield
            return
        os.makedirs(self.folder, exist_ok=True)
        with open(f"{self.folder}/{LOCK}", "a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise PipelineError(
                    f"{self.folder} is being written to by another job, process {lock.read()}:"
                    " wait until it ends, or stop it, then run this again"
                ) from None
            lock.truncate(0)
            print(os.getpid(), end="", file=lock, flush=True)
            yield

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def _at(self, name: str) -> Any:
        return self._new_path(self.path(name))

    def _on_disk(self, name: str) -> str | None:
        """The local path, or None; a name may lead out of the root with ``..``."""
        return None if self.folder is None else os.path.normpath(f"{self.folder}/{name}")

    def exists(self, name: str) -> bool:
        on_disk = self._on_disk(name)
        if on_disk is not None:
            return os.path.exists(on_disk)
        return bool(self._fs.exists(self._at(name)))

    def names(self, folder: str) -> list[str]:
        """Sorted names of a folder's entries; empty if the folder doesn't exist."""
        if not self.exists(folder):
            return []
        on_disk = self._on_disk(folder)
        if on_disk is not None:
            return sorted(os.listdir(on_disk))
        return sorted(
            status.getPath().getName() for status in self._fs.listStatus(self._at(folder))
        )

    def read(self, name: str) -> str:
        stream = self._fs.open(self._at(name))
        try:
            return str(self._text_of(stream, "UTF-8"))
        finally:
            stream.close()

    def write_new(self, name: str, text: str) -> None:
        """Create a file atomically; it must not exist."""
        if self.exists(name):
            raise PipelineError(f"{self.path(name)} already exists: {ANOTHER}")
        folder, _, last = name.rpartition("/")
        fresh = f"{folder}/_{last}.fresh"
        stream = self._fs.create(self._at(fresh), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.rename(fresh, name)

    def rename(self, name: str, to: str) -> None:
        """Move a file, creating the target's folders."""
        source, target = self._on_disk(name), self._on_disk(to)
        if not self.exists(name):
            done = False
        elif source is not None and target is not None:
            # Hadoop would run a ``chmod`` for each folder.
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.move(source, target)  # The quarantine may be on another disk.
            done = True
        else:
            self._fs.mkdirs(self._at(to.rpartition("/")[0]))
            done = bool(self._fs.rename(self._at(name), self._at(to)))
        if not done:
            raise PipelineError(f"{self.path(name)} cannot be renamed to {self.path(to)}")

    def delete(self, name: str) -> None:
        """Delete a file or a folder recursively; a missing one is no error."""
        self._fs.delete(self._at(name), True)


def delete_incomplete_checkpoint(checkpoint: Files) -> None:
    """Remove a checkpoint whose stream was killed while writing its first batch's offsets, because
    Spark would not start a stateful stream from it. A checkpoint with a complete batch is kept.
    """
    steps = checkpoint.names(OFFSETS)
    if not any(name.isdigit() for name in steps):
        for name in steps:
            checkpoint.delete(f"{OFFSETS}/{name}")

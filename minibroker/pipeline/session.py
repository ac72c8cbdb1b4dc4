"""Creates the Spark session of a job, and reports in one line why Spark can't start.

Owns the defaults of a local session, the validation of a master's URL, and what Spark and its JVM
print while they start; it must never know what a job does. Invariant: under ``spark-submit``, or
with a master other than ``local``, no setting of the cluster is overridden; only the time zone is
set, because results depend on it. A failed start is one exception with the cause, and nothing else
is printed; a start that succeeds prints what Spark prints. Spark itself retries an unreachable
master for a minute, and prints a stack trace each time.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from minibroker.pipeline.errors import PipelineError, SparkMissing, SparkNotStarted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Start of the JVM --------------------------------------------------------------------------------

CONNECT_S: Final = 5.0
"""Time to connect to a master."""

PRINTED_MAX: Final = 256 * 1024
"""Bytes that are kept of what is printed during the start; later ones are dropped if it fails."""

CAUSE_MAX: Final = 300
"""Characters of a cause."""

_LOCAL: Final = re.compile(r"local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?|local-cluster\[.+\]")
_KILLED: Final = re.compile(r"Application has been killed. Reason: (.+)")
_CAUSED_BY: Final = re.compile(
    r"^(?:Caused by)?: ([\w.$]+(?:Exception|Error))(?:: (.+))?$", re.MULTILINE
)
_THROWN: Final = re.compile(r'^Exception in thread "[^"]*" [\w.$]+: ')
_JVM_COMPLAINT: Final = re.compile(
    r"^.*(?:Invalid|Unrecognized|Unsupported|[Uu]nresolved|Could not|Improperly|[Ee]rror|Exception)"
    r".*$",
    re.MULTILINE,
)


def check_master(master: str) -> None:
    """Raise SparkNotStarted if the URL is malformed, or no master can be reached at it."""
    scheme, _, rest = master.partition("://")
    if scheme == "spark" and rest:
        _check_reachable(master, rest.split(","))
    elif not (_LOCAL.fullmatch(master) or master == "yarn" or (scheme == "k8s" and rest)):
        raise SparkNotStarted(
            f"--master {master} is no URL of a Spark master: give local[*], local[4],"
            " spark://host:port, yarn or k8s://https://host:port"
        )


def _check_reachable(master: str, places: list[str]) -> None:
    failures = []
    for place in places:
        host, _, port = place.rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise SparkNotStarted(
                f"--master {master}: '{place}' is not host:port; the URL of a master is"
                " spark://host:7077"
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except OSError as error:
            failures.append(f"{place}: {error.strerror or error}")
        else:
            return
    raise SparkNotStarted(
        f"no Spark master can be reached at {master} ({'; '.join(failures)}): start it, correct the"
        " URL, or leave out --master to use this machine"
    )


class Printed:
    """What this process and the JVM write to standard error during a start."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._kept = bytearray()
        self._passes: bool | None = None
        self._lock = threading.Lock()

    @property
    def text(self) -> str:
        """What was written so far."""
        with self._lock:
            return self._kept.decode("utf-8", "replace")

    def end(self, *, passes: bool) -> None:
        """Pass everything to standard error from now on, or nothing."""
        with self._lock:
            self._passes = passes
            if passes:
                self._write(bytes(self._kept))
            self._kept.clear()

    def run(self) -> None:
        """Read until every process has closed its end."""
        while content := os.read(self._reads, 65536):
            with self._lock:
                if self._passes:
                    self._write(content)
                elif self._passes is None and len(self._kept) < PRINTED_MAX:
                    self._kept += content
        os.close(self._reads)

    def _write(self, content: bytes) -> None:
        while content:
            content = content[os.write(self._writes, content) :]


@contextmanager
def one_error() -> Iterator[None]:
    """Context in which Spark starts: raises SparkNotStarted instead of any other exception."""
    reads, writes = os.pipe()
    stderr = os.dup(2)
    printed = Printed(reads, stderr)
    os.dup2(writes, 2)
    os.close(writes)
    threading.Thread(target=printed.run, name="spark-stderr", daemon=True).start()
    try:
        yield
    except Exception as error:
        os.dup2(stderr, 2)
        cause = cause_of(str(error), printed.text)
        printed.end(passes=False)
        raise SparkNotStarted(
            f"Spark did not start: {cause}; check --master and --conf, and that JAVA_HOME, or the"
            " java on the path, is Java 17 or 21"
        ) from error
    except BaseException:
        os.dup2(stderr, 2)
        printed.end(passes=False)
        raise
    os.dup2(stderr, 2)
    printed.end(passes=True)


def cause_of(error: str, printed: str) -> str:
    """The cause in the text of an exception, or in what a JVM printed that exited."""
    killed = _KILLED.search(printed)
    if killed:
        return _shortened(killed[1])
    causes = _CAUSED_BY.findall(error)
    if causes:
        name, text = causes[-1]
        return _shortened(text or name)
    complaint = _JVM_COMPLAINT.search(printed)
    return _shortened(complaint[0] if complaint else error.strip().partition("\n")[0])


def _shortened(cause: str) -> str:
    return _THROWN.sub("", cause.strip()).rstrip(".")[:CAUSE_MAX]


# The session -------------------------------------------------------------------------------------

CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""Spark's own connector to Kafka, for ``spark.jars.packages``; Maven Central has no 4.2.1 of it."""

LOCAL: Final = "local[*]"
LOCAL_MEMORY: Final = "1500m"
"""Heap size of a local JVM, unless ``spark.driver.memory`` is set."""

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_INSTALL: Final = "pip install 'minibroker[spark]'"


@contextmanager
def session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session for the job ``name``, stopped at the end.

    ``conf`` wins over every default. Raises SparkMissing when pyspark or a JVM isn't there, and
    SparkNotStarted when Spark can't start with these settings.
    """
    spark = start(name, master=master, conf=conf)
    try:
        yield spark
    finally:
        spark.stop()


def start(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Like `session`, but the caller stops it."""
    look_for_spark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"minibroker {name}")
    every = {**settings(os.environ, master), **(conf or {})}
    for key, value in every.items():
        builder = builder.config(key, value)
    if not _submitted(os.environ):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        if _local(master):
            os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if "spark.master" in every:
        check_master(every["spark.master"])
    with one_error():
        return builder.getOrCreate()


def look_for_spark() -> None:
    """Raise SparkMissing if pyspark or a JVM is missing, without starting either."""
    if find_spec("pyspark") is None:
        raise SparkMissing(f"the pipeline runs on Spark, which is not installed: {_INSTALL}")
    if not _submitted(os.environ):
        _look_for_java(os.environ)


def reads_this_machine(master: str | None, conf: Mapping[str, str]) -> bool:
    """Whether a path without a scheme is local, as far as is known before Spark starts."""
    elsewhere = any(key.endswith("fs.defaultFS") for key in conf)
    return _local(master) and not _submitted(os.environ) and not elsewhere


def connector_missing(environment: Mapping[str, str]) -> str:
    """Explain how to add the connector's jars: it depends on how the JVM was started."""
    said = "Spark's Kafka connector is missing"
    if _submitted(environment):
        return (
            f"{said}: pass it to spark-submit, before the job: --packages {CONNECTOR}, or --jars …"
        )
    return (
        f"{said}: add --conf spark.jars.packages={CONNECTOR}, or its jars with --conf spark.jars=…"
    )


def settings(environment: Mapping[str, str], master: str | None) -> dict[str, str]:
    """Settings of a session in addition to the user's and the cluster's."""
    common = {"spark.sql.session.timeZone": "UTC"}
    if _submitted(environment):
        return common
    if not _local(master):
        return {**common, "spark.master": str(master)}
    return {
        **common,
        "spark.master": master or LOCAL,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": LOCAL_MEMORY,
        "spark.ui.enabled": "false",
        # Spark's progress bar moves the cursor, so it is of no use in a file.
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        # A short job ends before the optimizing compiler and a parallel collector pay off.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        f" -Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    }


def _submitted(environment: Mapping[str, str]) -> bool:
    """Whether ``spark-submit`` started this process, and with it the JVM."""
    return "PYSPARK_GATEWAY_PORT" in environment


def _local(master: str | None) -> bool:
    return master is None or master.split("[")[0] == "local"


def _look_for_java(environment: Mapping[str, str]) -> None:
    home = environment.get("JAVA_HOME")
    if home:
        if not os.access(os.path.join(home, "bin", "java"), os.X_OK):
            raise SparkMissing(
                f"Spark needs a JVM, and JAVA_HOME={home} has no bin/java: set it to Java 17,"
                " or unset it if java is on the path"
            )
    elif shutil.which("java") is None:
        raise SparkMissing(
            "Spark needs a JVM, and there is no java on the path: install Java 17, e.g. Debian's"
            " package openjdk-17-jre-headless, or set JAVA_HOME"
        )


# ----------------------------- Files on any of Hadoop's file systems: a disk, HDFS, an object store
# Owns the few operations that a table's ledger needs, run by the driver through Spark's JVM; on a
# local disk the frequent ones bypass Hadoop, at a tenth of the cost. It must never know the files'
# contents. Invariant: every path is relative to the root, and every failure is an error, where
# Hadoop often only returns false. Tasks read through Spark, and write through Spark or, on a disk,
# directly.


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

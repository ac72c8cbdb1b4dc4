"""Detects why Spark can't start, and reports it in one line.

Owns the validation of a master's URL, and what Spark and its JVM print while they start. It must
never know a job, or choose a setting. Invariant: for any cause, the caller gets one exception
with the cause, and nothing else is printed; a start that succeeds prints the same as without this.
Spark itself retries an unreachable master for a minute, and prints a stack trace each time.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from minibroker.pipeline.errors import SparkNotStarted

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

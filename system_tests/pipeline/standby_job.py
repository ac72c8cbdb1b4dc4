"""Pipeline jobs whose JVM is started in advance, so that one can follow a killed one at once.

It owns the standby process, and kills it by SIGKILL; the tests decide which job it runs, and when
it is killed. Invariant: it touches none of a job's files before it is started, and a kill ends all
of its child processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from system_tests.harness.processes import is_running, tree
from system_tests.harness.waiting import SPARK_PATIENCE_S, wait_until
from system_tests.pipeline.job_launchers import jars

TRIGGER: Final = "1 second"
"""Interval of ingest steps, instead of ten seconds, so that a killed job has done several."""


class Standby:
    """One process, which waits for its job; what it prints is appended to a file."""

    def __init__(self, printed: Path) -> None:
        conf = {"spark.jars": jars(), "spark.sql.shuffle.partitions": "1"}
        self._printed = printed
        with printed.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "system_tests.pipeline.standby_job", json.dumps(conf)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *words: str) -> None:
        """Run ``minibroker pipeline`` with these arguments."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words).encode() + b"\n")
        self.process.stdin.flush()

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def printed(self) -> str:
        """The last error printed to this log, or the end of the output."""
        before, error, after = self._printed.read_text(errors="replace").rpartition("Error: ")
        return error + after[:4000] if error else (before + after)[-4000:]

    def wait(self) -> None:
        """Wait until the job succeeds."""
        assert self.process.wait(SPARK_PATIENCE_S) == 0, self.printed()

    def kill(self, later_s: float = 0) -> None:
        """Kill the job and all its child processes after ``later_s`` seconds."""
        at_s = time.monotonic() + later_s
        wait_until(lambda: time.monotonic() >= at_s, "the time of the kill", pause_s=0.002)
        family = tree(self.process.pid)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        if self.process.stdin is not None:
            self.process.stdin.close()
        wait_until(lambda: not [pid for pid in family if is_running(pid)], "the job to end")


def wait_for_job(conf: dict[str, str]) -> None:
    """Start a Spark session, then wait for the arguments of a job and run it."""
    from minibroker.pipeline import ingest
    from minibroker.pipeline.__main__ import app
    from minibroker.pipeline.session import session

    setattr(ingest, "TRIGGER", TRIGGER)  # noqa: B010 - a constant for all others
    with session("standby", master="local[2]", conf=conf) as spark:
        spark.range(1).count()
        line = sys.stdin.readline()
        if line:
            app()(json.loads(line))  # its session is this one


if __name__ == "__main__":
    wait_for_job(json.loads(sys.argv[1]))

"""JVMs of the tests: how one starts fast, and how one that answers lines ends.

Owns the archive of Kafka's classes, which is made once and kept in the cache. It must never know
what a JVM runs. Invariant: a JVM that was ended is gone, even if it did not react to the end of its
input.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from system_tests.harness.jars import CACHE, JAVA, classpath, kafka_jars, one_at_a_time, run
from system_tests.harness.waiting import PATIENCE_S

QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
"""Option that turns the log of Kafka's classes off."""
ERRORS = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
"""Option that limits it to errors."""

SHORT: Final = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A JVM that ends before an optimizing compiler and a parallel collector pay off."""


def short_jvm(*options: str) -> list[str]:
    """Return the command of such a JVM; its class path must begin with Kafka's jars.

    Loading and checking their classes is half of the work of a program that starts. An archive
    that does not fit is ignored, without a message on standard output.
    """
    return [*SHORT, f"-XX:SharedArchiveFile={kafka_classes()}", "-Xlog:disable", *options]


@functools.cache
def kafka_classes() -> Path:
    """Return the archive of the classes that brokers and clients load, made if need be."""
    jars, program = kafka_jars(), JAVA / "training" / "Training.java"
    java = os.path.realpath(shutil.which("java") or "")
    digest = hashlib.sha256(program.read_bytes() + f"{jars} {java}".encode()).hexdigest()[:12]
    archive = CACHE / f"kafka-classes-{digest}.jsa"
    with one_at_a_time("kafka-classes"), tempfile.TemporaryDirectory() as folder:
        if not archive.exists():
            fresh = archive.with_suffix(".part")
            options = [QUIET, "-Xlog:disable", f"-XX:ArchiveClassesAtExit={fresh}"]
            run(
                [*SHORT, *options, "-cp", classpath(jars), str(program), folder],
                "the archive of Kafka's classes was not made",
            )
            fresh.rename(archive)
    return archive


def end_jvm(process: subprocess.Popen[Any]) -> None:
    """Close the input of a JVM, and kill it if it does not end then."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.stdout.close()

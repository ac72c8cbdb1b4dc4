"""A JVM that answers lines until the end of its input.

Owns its quiet log and its end. It must never know what the lines mean. Invariant: a JVM that was
ended is gone, even if it did not react to the end of its input.
"""

from __future__ import annotations

import subprocess
from typing import Any

from system_tests.harness.waiting import PATIENCE_S

QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
"""Option that turns the log of Kafka's classes off."""


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

"""Errors of the pipeline that the user can fix.

Owns the errors that a job raises on purpose; it must never print or exit, because a job is also a
library. Invariant: a message says what is wrong, where, and how to fix it. Spark's own errors are
class names and stack traces, so foreseeable mistakes are detected before Spark runs.
"""

from __future__ import annotations

from typing import Final

RUN_AGAIN: Final = "the table was compacted in the meantime: run this again"
"""The remedy for a file that disappeared while the job was running."""


class PipelineError(Exception):
    """A mistake or a failure to report to the user who started the job."""


class SparkMissing(PipelineError):
    """pyspark, or the JVM that it needs, is missing."""


class SparkNotStarted(PipelineError):
    """Spark, or its JVM, did not start: a wrong master, setting or JVM."""


class WrongSchema(PipelineError):
    """The input does not match the schema; the message names place, column and remedy."""


class BadInput(PipelineError):
    """The given path contains no input, or input that cannot be read."""

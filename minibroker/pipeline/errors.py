"""What goes wrong in the pipeline for reasons that a person can mend.

Owns the errors that a job raises on purpose; it must never print or exit, because a job is also a
library. Invariant: a message says what is wrong, where, and how to mend it. Spark's own errors are
class names and stack traces, which is why the mistakes that can be foreseen are caught before.
"""

from __future__ import annotations

from typing import Final

RUN_AGAIN: Final = "its table's files were joined meanwhile: run this again"
"""What to do about a file that was there, and is gone."""


class PipelineError(Exception):
    """A mistake or a failure to report to the person who started the job."""


class SparkMissing(PipelineError):
    """pyspark, or the JVM that it runs in, is not there."""


class WrongSchema(PipelineError):
    """What was read isn't what the schema says; the text names place, column and remedy."""


class BadInput(PipelineError):
    """There is nothing to read at the place that was named, or it can't be read."""

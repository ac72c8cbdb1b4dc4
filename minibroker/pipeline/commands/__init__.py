"""The pipeline's commands: one module for each, listed here and imported on use.

``minibroker pipeline`` and ``spark-submit minibroker/pipeline/__main__.py`` are both built from
this list. A command's module imports pyspark only inside functions, so its help needs no Spark.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Job(NamedTuple):
    """A command that runs a job."""

    module: str
    command: str
    """The name of the click command in the module."""
    help: str
    """Its line in the list of commands."""


JOBS: Final[dict[str, Job]] = {
    "ingest": Job(
        "minibroker.pipeline.commands.ingest",
        "ingest",
        "Read a broker's events into a table, each exactly once.",
    ),
    "compact": Job(
        "minibroker.pipeline.commands.ingest",
        "compact",
        "Merge the files of each hour and bucket into one.",
    ),
    "usage": Job(
        "minibroker.pipeline.commands.usage",
        "usage",
        "Aggregate usage by entity.",
    ),
    "recommend": Job(
        "minibroker.pipeline.commands.recommend",
        "recommend",
        "Recommend a quota for each entity, with reasons.",
    ),
    "whatif": Job(
        "minibroker.pipeline.commands.whatif",
        "whatif",
        "Show which clients other quotas would have throttled.",
    ),
    "report": Job(
        "minibroker.pipeline.commands.report",
        "report",
        "Write an HTML page of usage, throttling and latency.",
    ),
    "watch": Job(
        "minibroker.pipeline.commands.watch",
        "watch",
        "Alert on throttling, nearly exhausted quotas and noisy neighbours.",
    ),
}
"""In the order of a typical use."""

HELP: Final = "Analyse recorded broker activity with Spark."
EPILOG: Final = """Jobs run in this process or, with --master, on a cluster. They need the extra
minibroker[spark] and Java 17."""

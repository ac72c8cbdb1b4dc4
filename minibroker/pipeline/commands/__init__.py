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
        "Take the events of a broker into a table, each once.",
    ),
    "compact": Job(
        "minibroker.pipeline.commands.ingest",
        "compact",
        "Join the files of each hour and bucket into one.",
    ),
    "usage": Job(
        "minibroker.pipeline.commands.usage",
        "usage",
        "Add up who used how much of what.",
    ),
    "recommend": Job(
        "minibroker.pipeline.commands.recommend",
        "recommend",
        "Find a quota that fits for everybody, and say why.",
    ),
    "whatif": Job(
        "minibroker.pipeline.commands.whatif",
        "whatif",
        "Tell who would have been held under other quotas.",
    ),
    "report": Job(
        "minibroker.pipeline.commands.report",
        "report",
        "Draw what happened as one page for a browser.",
    ),
    "watch": Job(
        "minibroker.pipeline.commands.watch",
        "watch",
        "Tell of throttles, full quotas and noisy neighbours as they happen.",
    ),
}
"""In the order of a typical use."""

HELP: Final = "What happened, and what if: jobs on what brokers saw, on Spark."
EPILOG: Final = """They run in this process or, given --master, on a cluster; they need the extra
minibroker[spark] and a Java 17."""

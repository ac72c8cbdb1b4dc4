"""``minibroker pipeline``: Spark jobs on activity records.

Owns the group of this name; the commands belong to `minibroker.pipeline`, and ``spark-submit`` can
run them, too. Invariant: help imports neither Spark nor a job, so it works without Spark. Kafka has
no counterpart.
"""

from __future__ import annotations

from minibroker.cli.commands import CommandGroup, LazyCommand
from minibroker.pipeline.commands import EPILOG, HELP, JOBS

app = CommandGroup(
    "pipeline",
    late={name: LazyCommand(*job) for name, job in JOBS.items()},
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
)

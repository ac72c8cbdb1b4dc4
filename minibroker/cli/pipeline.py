"""``minibroker pipeline``: jobs on what brokers saw.

Owns the group under that name; the commands are the pipeline's own, which ``spark-submit`` starts
too. Invariant: help loads neither Spark nor any job, so that it is answered where Spark isn't
installed. Kafka has no counterpart.
"""

from __future__ import annotations

from minibroker.cli.commands import Group, Late
from minibroker.pipeline.commands import EPILOG, HELP, JOBS

app = Group(
    "pipeline",
    late={name: Late(*job) for name, job in JOBS.items()},
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
)

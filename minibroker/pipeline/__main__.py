"""``spark-submit minibroker/pipeline/__main__.py JOB …`` and ``python -m minibroker.pipeline``.

Owns the entry point for environments in which Spark starts Python and not the reverse; the commands
are those of ``minibroker pipeline``. It must never know what they do. Invariant: the session's
settings are ``spark-submit``'s own.
"""

from __future__ import annotations

from importlib import import_module

import click

from minibroker.pipeline.commands import EPILOG, HELP, JOBS


def app() -> click.Group:
    """The command group with all jobs."""
    group = click.Group("minibroker.pipeline", help=HELP, epilog=EPILOG, no_args_is_help=True)
    for name, job in JOBS.items():
        command: click.Command = getattr(import_module(job.module), job.command)
        command.short_help = job.help  # Click would cut the complete help to a line.
        group.add_command(command, name)
    return group


if __name__ == "__main__":
    app()()

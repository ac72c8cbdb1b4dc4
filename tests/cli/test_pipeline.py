from __future__ import annotations

import click

from minibroker.cli.pipeline import app
from minibroker.pipeline.__main__ import app as submitted
from minibroker.pipeline.commands import JOBS


def test_pipeline_group_has_all_jobs() -> None:
    for group in (app, submitted()):
        assert set(group.list_commands(click.Context(group))) == set(JOBS)


def test_pipeline_group_has_the_complete_help_of_each_job() -> None:
    for group in (app, submitted()):
        output = " ".join(group.get_help(click.Context(group, terminal_width=80)).split())
        assert all(f"{name} {job.help}" in output for name, job in JOBS.items())

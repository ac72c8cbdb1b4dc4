from __future__ import annotations

import click

from minibroker.cli.pipeline import app
from minibroker.pipeline.__main__ import app as submitted
from minibroker.pipeline.commands import JOBS


def test_both_ways_in_lead_to_the_same_jobs() -> None:
    for group in (app, submitted()):
        assert set(group.list_commands(click.Context(group))) == set(JOBS)


def test_both_tell_the_same_of_each_job_and_cut_nothing() -> None:
    for group in (app, submitted()):
        told = " ".join(group.get_help(click.Context(group, terminal_width=80)).split())
        assert all(f"{name} {job.help}" in told for name, job in JOBS.items())

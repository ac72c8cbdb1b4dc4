"""What every command of the pipeline has: the session's options, and errors in words.

Owns the options --master and --conf, and the way from an error of the pipeline to what a person
reads. It must never know a job. Invariant: a mistake that was foreseen ends in one line and exit
status 1, everything else in a traceback. ``spark-submit`` gives the same options their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from minibroker.pipeline.errors import PipelineError
from minibroker.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _pairs(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        key, equals, setting = value.partition("=")
        if not (key and equals):
            raise click.BadParameter(f"'{value}' is not key=value", param=option)
        found[key] = setting
    return found


def session_options(command: Decorated) -> Decorated:
    """Give a command the options ``master`` and ``conf``, which `running` takes."""
    conf = click.option(
        "--conf", multiple=True, callback=_pairs, metavar="KEY=VALUE", help="A setting of Spark's."
    )
    master = click.option(
        "--master", metavar="URL", help="Spark's master; all cores of this machine if left out."
    )
    return master(conf(command))


@contextmanager
def running(name: str, master: str | None, conf: dict[str, str]) -> Iterator[SparkSession]:
    """A session for the job ``name``; errors of the pipeline become lines for a person."""
    try:
        with session(name, master=master, conf=conf) as spark:
            yield spark
    except PipelineError as error:
        raise click.ClickException(str(error)) from error

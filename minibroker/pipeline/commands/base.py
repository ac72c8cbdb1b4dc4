"""What every command of the pipeline has: the session's options, and errors in words.

Owns the options --master and --conf, and the way from an error of the pipeline to what a person
reads. It must never know a job. Invariant: a mistake that was foreseen ends in one line and exit
status 1, everything else in a traceback. ``spark-submit`` gives the same options their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlparse

import click

from minibroker.pipeline.errors import BadInput, PipelineError
from minibroker.pipeline.session import look_for_spark, reads_this_machine, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATTERN: Final = re.compile(r"[*?\[{]")
"""Of many paths, as Hadoop has them."""

_TOLD_BY_A_WORKER: Final = re.compile(r"minibroker\.pipeline\.errors\.\w+: (.+)")
"""An error of the pipeline that comes in the text of one of Spark's."""

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


command_config_option: Final = click.option(
    "--command-config",
    metavar="FILE",
    envvar="MINIBROKER_COMMAND_CONFIG",
    show_envvar=True,
    help="A client's properties, for a broker that wants TLS or to know who asks.",
)
"""As minibroker's other commands have it."""


@contextmanager
def in_words() -> Iterator[None]:
    """Errors of the pipeline become lines for a person: around what a job is given, which is
    looked at before Spark is started, as that takes seconds.
    """
    try:
        look_for_spark()
        yield
    except PipelineError as error:
        raise click.ClickException(str(error)) from error
    except Exception as error:
        told = _TOLD_BY_A_WORKER.search(str(error))
        if told is None:
            raise
        raise click.ClickException(told[1]) from error


def look_for_table(path: str, master: str | None, conf: Mapping[str, str]) -> None:
    """Raises BadInput if the path is surely of this machine, and nothing is there."""
    if not reads_this_machine(master, conf) or _PATTERN.search(path):
        return
    parts = urlparse(path)
    if parts.scheme in ("", "file") and not Path(parts.path).exists():
        raise BadInput(f"{path} can't be read as a table of Parquet files: nothing is there")


@contextmanager
def running(name: str, master: str | None, conf: dict[str, str]) -> Iterator[SparkSession]:
    """A session for the job ``name``; errors of the pipeline become lines for a person."""
    with in_words(), session(name, master=master, conf=conf) as spark:
        yield spark

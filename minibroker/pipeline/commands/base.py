"""Shared by all pipeline commands: the session's options, and readable errors.

Owns the options --master and --conf, and the conversion of the pipeline's errors to messages for
the user. It must never know a job. Invariant: an expected error ends with one line and exit status
1, any other with a traceback. The options have the names that ``spark-submit`` gives them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from minibroker.pipeline.errors import RUN_AGAIN, BadInput, PipelineError
from minibroker.pipeline.session import look_for_spark, reads_this_machine, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATTERN: Final = re.compile(r"[*?\[{]")
"""Hadoop's glob characters, which make a path a pattern."""

_WORKER_ERROR: Final = re.compile(r"minibroker\.pipeline\.errors\.\w+: (.+)")
"""A pipeline error within the text of one of Spark's errors."""

_UNREADABLE_FILE: Final = re.compile(r"\[FAILED_READ_FILE.+ while reading file (\S.*?)\.\s")
"""Spark's error for an unreadable file, when Spark reads the table itself (not on a local disk)."""
_DISK_FULL: Final = (
    "no space left on a disk, either for the output or for Spark's temporary files"
    " (spark.local.dir): free some space and run this again"
)

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _pairs(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        key, equals, setting = value.partition("=")
        if not (key and equals):
            raise click.BadParameter(f"'{value}' is not key=value", param=option)
        if not key.startswith("spark."):
            raise click.BadParameter(
                f"'{key}' is no setting of Spark, which would ignore it: their names start with"
                " spark., those of Hadoop with spark.hadoop.",
                param=option,
            )
        found[key] = setting
    return found


def session_options(command: Decorated) -> Decorated:
    """Add the options ``master`` and ``conf``, the arguments of `running`."""
    conf = click.option(
        "--conf",
        multiple=True,
        callback=_pairs,
        metavar="KEY=VALUE",
        help="A Spark setting; may be repeated.",
    )
    master = click.option(
        "--master", metavar="URL", help="Spark's master. [default: all cores of this machine]"
    )
    return master(conf(command))


json_option: Final = click.option(
    "--json", "is_json", is_flag=True, help="Print JSON objects, one per line."
)

command_config_option: Final = click.option(
    "--command-config",
    metavar="FILE",
    envvar="MINIBROKER_COMMAND_CONFIG",
    show_envvar=True,
    help="A client properties file, for a broker that requires TLS or SASL.",
)
"""The same option as in minibroker's other commands."""


@contextmanager
def readable_errors() -> Iterator[None]:
    """Convert the pipeline's errors to click errors.

    Also used for the validation of arguments, which precedes the start of Spark because that takes
    seconds.
    """
    try:
        look_for_spark()
        yield
    except PipelineError as error:
        raise click.ClickException(str(error)) from error
    except Exception as error:
        cause = _known_cause(str(error))
        if cause is None:
            raise
        raise click.ClickException(cause) from error


def _known_cause(error: str) -> str | None:
    """The cause of a Spark error, if it is known."""
    of_worker = _WORKER_ERROR.search(error)
    if of_worker is not None:
        return of_worker[1]
    unread = _UNREADABLE_FILE.search(error)
    if unread is not None:
        return f"{unread[1]} cannot be read; if it is not damaged, {RUN_AGAIN}"
    return _DISK_FULL if os.strerror(errno.ENOSPC) in error else None


def check_table_exists(path: str, master: str | None, conf: Mapping[str, str]) -> None:
    """Raise BadInput if the path is known to be local and is not a directory."""
    place = None if PATTERN.search(path) else _place(path, master, conf)
    if place is not None and not place.is_dir():
        found = "it is not a directory" if place.exists() else "it does not exist"
        raise BadInput(f"{path} cannot be read as a table of Parquet files: {found}")


def check_path_unused(path: str | None, master: str | None, conf: Mapping[str, str]) -> None:
    """Raise BadInput if the path is known to be local and already exists."""
    place = None if path is None else _place(path, master, conf)
    if place is not None and place.exists():
        raise BadInput(f"{path} already exists: remove it, or choose another path")


def _place(path: str, master: str | None, conf: Mapping[str, str]) -> Path | None:
    """The local path; None if the path may be on another file system."""
    if not reads_this_machine(master, conf):
        return None
    from minibroker.pipeline.activity_table import on_disk  # Imports pyarrow, which takes a moment.

    return on_disk(path)


@contextmanager
def running(name: str, master: str | None, conf: dict[str, str]) -> Iterator[SparkSession]:
    """A session for the job ``name``, with readable errors."""
    with readable_errors(), session(name, master=master, conf=conf) as spark:
        yield spark


def columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, headings first; nothing if there are no rows."""
    if not rows:
        return
    every = [headings, *rows]
    widths = [max(len(row[at]) for row in every) for at in range(len(headings))]
    for row in every:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()

from __future__ import annotations

import click
from click.testing import CliRunner

from minibroker.pipeline.commands.base import running, session_options


@click.command()
@session_options
def job(master: str | None, conf: dict[str, str]) -> None:
    with running("job", master, conf):
        pass


def test_settings_of_spark_are_pairs() -> None:
    result = CliRunner().invoke(job, ["--conf", "spark.ui.port"])
    assert result.exit_code == 2
    assert "'spark.ui.port' is not key=value" in result.output


def test_a_foreseen_error_is_one_line() -> None:
    result = CliRunner(env={"JAVA_HOME": "/nowhere"}).invoke(job, [])
    assert result.exit_code == 1
    assert result.output.startswith("Error: Spark needs a JVM, and JAVA_HOME=/nowhere has no")

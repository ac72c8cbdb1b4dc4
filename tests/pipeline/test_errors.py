from __future__ import annotations

import click
import pytest

from minibroker.pipeline.commands import base
from minibroker.pipeline.errors import BadInput, PipelineError, SparkMissing, WrongSchema


@pytest.mark.parametrize("error", [PipelineError, SparkMissing, WrongSchema, BadInput])
def test_command_makes_a_line_of_every_error(
    error: type[PipelineError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error("the third column is missing")

    monkeypatch.setattr(base, "session", failing)
    with pytest.raises(click.ClickException, match="the third column"), base.running("x", None, {}):
        pass

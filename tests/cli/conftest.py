"""Runs commands in this process, against a real or a fake broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.testing import MiniBroker
from tests.client.fake_broker import fake_broker

__all__ = ["fake_broker"]


@pytest.fixture
def command(minibroker: MiniBroker) -> Callable[..., Any]:
    """Run a command against the shared broker, or that of ``-b``; pass on its exception."""

    def run(*words: str, stdin: bytes | None = None) -> Any:
        server = [] if "-b" in words else ["-b", minibroker.bootstrap_servers]
        arguments = [*words, *server]
        result = CliRunner().invoke(app, arguments, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run

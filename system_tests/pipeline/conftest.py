"""Fixtures of the pipeline's tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from system_tests.console.conftest import browser
from system_tests.pipeline import class_archive
from tests.pipeline.conftest import spark

__all__ = ["browser", "spark"]


@pytest.fixture(scope="session", autouse=True)
def fast_start_of_spark() -> Iterator[None]:
    """Let all of Spark's JVMs start with the archive of its classes."""
    with pytest.MonkeyPatch.context() as patch:
        if shutil.which("java") is not None:
            for name, value in class_archive.environment().items():
                patch.setenv(name, value)
        yield

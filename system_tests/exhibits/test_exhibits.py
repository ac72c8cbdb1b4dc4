"""Each exhibit is as its page says: red with the defective version, green with the fixed one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from system_tests.conftest import without_toolchain
from system_tests.exhibits.page import Exhibit, exhibits
from system_tests.exhibits.running import problems, run_exhibit
from system_tests.harness.jars import ToolchainMissing

pytestmark = pytest.mark.minibroker

MARKS = {"js": (pytest.mark.node,), "java": (pytest.mark.java,)}


def runs() -> Iterator[object]:
    """Yield each exhibit of CI with each of its versions."""
    for exhibit in exhibits():
        if exhibit.ci:
            marks = MARKS.get(exhibit.language, ())
            for version in exhibit.versions:
                name = f"{exhibit.name}-{version}"
                yield pytest.param(exhibit, version, id=name, marks=marks)


@pytest.mark.parametrize(("exhibit", "version"), list(runs()))
def test_client_is_as_its_page_says(exhibit: Exhibit, version: str) -> None:
    try:
        done = run_exhibit(exhibit, version)
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    assert problems(exhibit, version, done) == [], done.text()[-20_000:]

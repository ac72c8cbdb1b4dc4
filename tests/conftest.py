"""Fixtures of all tests, and the effort of hypothesis.

Owns the profiles (``HYPOTHESIS_PROFILE=deep`` for many examples), the ``seed`` fixture, and files
that tests of several packages write alike. Knows nothing of the broker. Invariant: two runs with
the same ``--randomly-seed`` have the same seed.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from minibroker.runtime import system
from tests.foreground import heed_interrupts
from tests.scheduling import UnitScheduling, place_of

# Neither an example nor its making has a time: a busy machine is no mistake of a test.
TIMELESS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", TIMELESS, max_examples=25)
settings.register_profile("deep", TIMELESS, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# Tests start hundreds of processes, and each would compile all modules: a third of a second instead
# of three. Rewritten test modules are kept, too.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_configure() -> None:
    heed_interrupts()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitScheduling | None:
    """Schedule by unit, unless ``--dist`` asks for another way."""
    if config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False
    return UnitScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place_of(item.nodeid))


@pytest.fixture(autouse=True)
def _unfreeze() -> Iterator[None]:
    """Return objects that a test froze to the garbage collector, which must find them at exit.

    Processes freeze what they have loaded, and some tests run their functions. Modules that are
    written in C++, such as DuckDB, report frozen objects as leaks.
    """
    yield
    gc.unfreeze()


@pytest.fixture(params=["linux", "portable"])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The variants of `minibroker.runtime.system` that this process uses."""
    monkeypatch.setattr(system, "is_portable", lambda: request.param == "portable")
    return str(request.param)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Seed of this run: ``make sim SEED=7`` (``--randomly-seed=7``) replays it."""
    value = request.config.getoption("randomly_seed", default=0)
    return value if isinstance(value, int) else 0


@pytest.fixture
def properties(tmp_path: Path) -> Callable[..., str]:
    """Write a client's properties line by line; return the file, always the same."""

    def write(*lines: str) -> str:
        file = tmp_path / "client.properties"
        file.write_text("\n".join(lines))
        return str(file)

    return write

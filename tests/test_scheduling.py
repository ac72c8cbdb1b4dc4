"""Workers get complete units, and the longest ones first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_xdist_make_scheduler
from tests.scheduling import LONGEST, place_of, unit_of

ROOT = Path(__file__).parent.parent


def test_files_that_run_first_exist() -> None:
    assert [path for path in LONGEST if not (ROOT / path).exists()] == []


def test_tests_of_a_file_are_one_unit_and_those_of_the_pipeline_too() -> None:
    assert (
        unit_of("tests/broker/quotas/test_rate.py::test_a[x::y]")
        == "tests/broker/quotas/test_rate.py"
    )
    spark = unit_of("tests/pipeline/test_table.py::test_a")
    assert spark == unit_of("tests/pipeline/whatif/test_job.py::test_b")


def test_files_that_take_long_run_first() -> None:
    names = (
        "tests/broker/quotas/test_rate.py",
        "tests/simulation/test_runs.py",
        "tests/pipeline/test_a.py",
    )
    assert sorted(names, key=place_of) == list(reversed(names))


class Worker:
    """What a scheduler uses of a worker of xdist."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_workers_get_complete_units_in_order_of_collection(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig("--dist", "load", "--tx", "2*popen")
    scheduler = pytest_xdist_make_scheduler(config, None)
    assert scheduler is not None
    workers: list[Any] = [Worker(), Worker()]
    tests = [f"tests/pipeline/test_{name}.py::test_it" for name in "abcd"]
    tests += ["tests/test_docs.py::test_it"]
    tests += [f"tests/broker/quotas/test_rate.py::test_it[{number}]" for number in range(5)]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, tests)
    scheduler.schedule()
    assert [worker.given for worker in workers] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]


def test_other_ways_to_distribute_are_left_alone(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig("--dist", "worksteal", "--tx", "2*popen")
    assert pytest_xdist_make_scheduler(config, None) is None

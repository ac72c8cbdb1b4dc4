"""Whole brokers keep their promises under random faults, and a seed repeats a run.

Each test run has new seeds. A failure names its seed, and the command that runs it alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.simulation import runs
from tests.simulation.many_seeds import Summary, run_seeds
from tests.simulation.run_plan import crowd_plan
from tests.simulation.runs import simulate
from tests.simulation.sometimes import PATHS, SEEDS_MIN, never_taken, table

PART_SEEDS: Final = 50
"""Seeds of a part: half a minute of processor time, so it is short on a busy machine, too."""
PARTS_MIN: Final = 4
"""Parts of a test run; others follow while no seed has taken one of the rare paths, of which the
rarest is taken by one of about 175 seeds. ``make sim-seeds`` runs as many as one likes.
"""
PARTS_MAX: Final = 4 * SEEDS_MIN // PART_SEEDS
ROOT: Final = Path(__file__).parents[2]


class Parts:
    """What the parts of a test run have in common. All parts run in one process."""

    def __init__(self) -> None:
        self.played = 0
        self.taken: Counter[str] = Counter()

    @property
    def are_enough(self) -> bool:
        return self.played >= PARTS_MIN and not never_taken(self.taken)

    def play(self, seeds: Sequence[int]) -> None:
        """Run the seeds. Fails if one does, or if the last part leaves a rare path untaken."""
        summary, problems = run_seeds(seeds)
        self.played += 1
        self.taken += summary.counts
        assert not problems, "\n".join(problems)
        missing = never_taken(self.taken) if self.played == PARTS_MAX else []
        assert not missing, f"no seed took {missing}\n{table(self.taken)}"


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts()


@pytest.mark.parametrize("part", range(PARTS_MAX))
def test_clients_lose_nothing_under_random_faults(parts: Parts, seed: int, part: int) -> None:
    if not parts.are_enough:
        first = (seed * PARTS_MAX + part) * PART_SEEDS
        parts.play(range(first, first + PART_SEEDS))


def test_hundreds_of_members_of_all_types_lose_nothing_under_random_faults(seed: int) -> None:
    outcome = simulate(seed, crowd_plan(members=75))
    assert not outcome.wrong, (seed, outcome.wrong)


def test_members_of_all_types_repeat_a_run_in_another_process(seed: int) -> None:
    digest = simulate(seed, crowd_plan(members=4)).digest
    assert f"seed {seed}: hash {digest}" in output_of_another_process(seed, "-m", "4")


def summary_of(*paths: str) -> Callable[[object], tuple[Summary, list[str]]]:
    """Pretends to run seeds which take these paths."""
    summary = Summary()
    summary.counts.update(paths)
    return lambda _: (summary, [])


def test_parts_follow_until_each_rare_path_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "run_seeds", summary_of(*PATHS[1:]))
    for _ in range(PARTS_MAX - 1):
        parts.play([])
        assert not parts.are_enough
    with pytest.raises(AssertionError, match=PATHS[0]):
        parts.play([])
    monkeypatch.setattr(module, "run_seeds", summary_of(PATHS[0]))
    parts.play([])
    assert parts.are_enough


def test_part_with_a_failed_seed_fails_and_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    monkeypatch.setattr(sys.modules[__name__], "run_seeds", lambda _: (Summary(), ["seed 7: lost"]))
    with pytest.raises(AssertionError, match="seed 7: lost"):
        parts.play([7])
    assert parts.played == 1


def output_of_another_process(seed: int, *arguments: str) -> list[str]:
    """What many_seeds prints about one seed in a process with another hash seed."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation.many_seeds", str(seed), "1", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed % 1000 + 1)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()


def test_seed_repeats_a_run_in_another_process(seed: int) -> None:
    first, second = simulate(seed), simulate(seed)
    assert second.transcript == first.transcript
    other = output_of_another_process(seed, "-v")
    assert other[: len(first.transcript)] == first.transcript
    assert f"seed {seed}: hash {first.digest}" in other


def test_run_without_an_end_is_reported(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    async def play_forever(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(runs, "play", play_forever)
    monkeypatch.setattr(runs, "RUN_CPU_S_MAX", 0.2)
    (wrong,) = simulate(seed).wrong
    assert "RunTooLong" in wrong
    assert "in play_forever" in wrong


def test_other_seed_has_another_hash(seed: int) -> None:
    assert simulate(seed).digest != simulate(seed + 1).digest

"""The standing attack: one run, and a test for each thing that must hold whatever happens."""

from __future__ import annotations

import pytest

from system_tests.attack.report import Invariant, Report

pytestmark = pytest.mark.minibroker


@pytest.mark.parametrize("invariant", list(Invariant), ids=lambda each: each.name.lower())
def test_attack_leaves_invariant_intact(report: Report, invariant: Invariant) -> None:
    found = [f"{each.round}: {each.text}" for each in report.violations(invariant)]
    assert not found, f"{invariant.value}; ATTACK_SEED={report.seed}\n" + "\n".join(found)

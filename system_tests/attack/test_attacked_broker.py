"""What watches a broker under attack still reaches it after all of its processes were killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from system_tests.attack.attacked_broker import AttackedBroker
from system_tests.attack.plan import Kind, plan
from system_tests.attack.report import Report
from system_tests.attack.targets import ask_control

pytestmark = pytest.mark.minibroker


def test_control_api_answers_at_its_address_after_a_restart(memory_folder: Path) -> None:
    """Otherwise probes would know no process, and blame the broker for a busy machine."""
    kills = next(each for each in plan(1, 60) if each.kind is Kind.KILLS)
    with AttackedBroker(kills, memory_folder / "broker", Report(1)) as attacked:
        target = attacked.target()
        attacked.kill_all()
        health = ask_control(target.control_url, "/v1/health")
        assert [each["name"] for each in health["processes"] if each["pid"]]

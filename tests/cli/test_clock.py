from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from minibroker.cli.clock import clock_text
from minibroker.cli.output import InvalidUsage
from minibroker.testing import MiniBroker


@pytest.fixture
def own() -> Iterator[MiniBroker]:
    """A broker whose clock no other test uses."""
    with MiniBroker() as broker:
        yield broker


def test_clock_is_frozen_advanced_and_runs_on(command: Any, own: MiniBroker) -> None:
    server = ("-b", own.bootstrap_servers)
    frozen = json.loads(command("clock", "freeze", "--json", *server).stdout)
    advanced = json.loads(command("clock", "advance", "1m30s", "--json", *server).stdout)
    assert frozen["frozen"]
    assert advanced["wall_ms"] - frozen["wall_ms"] == 90_000
    assert own.clock()["wall_ms"] == advanced["wall_ms"]
    shown = command("clock", "show", *server).stdout
    assert shown.split(",")[:2] == clock_text(advanced).split(",")[:2]
    running = json.loads(command("clock", "run", "--rate", "60", "--json", *server).stdout)
    assert (running["frozen"], running["rate"]) == (False, 60)


def test_clock_is_printed_in_one_line() -> None:
    clock = {"wall_ms": 1_796_000_000_007, "offset_ms": 90_000.4, "rate": 1.0, "frozen": True}
    line = "2026-11-30 00:53:20.007 UTC, frozen, +90.000 s from the system's clock"
    assert clock_text(clock) == line
    running = clock_text({**clock, "frozen": False, "rate": 0.5})
    assert ", running at 0.5 times the speed, " in running


def test_duration_that_is_none_is_rejected(command: Any) -> None:
    with pytest.raises(InvalidUsage, match="DURATION soon: must be a duration"):
        command("clock", "advance", "soon")

"""What the launcher imports before the fork stays small."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "late"),
    [
        ("minibroker.control.serve", {"starlette", "h11", "anyio", "prometheus_client"}),
        ("minibroker.observability.metrics", {"trio", "prometheus_client", "construct"}),
        ("minibroker.control.http", {"prometheus_client", "h11"}),
    ],
)
def test_what_only_one_process_needs_is_not_loaded_with(module: str, late: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert late & set(run.stdout.split()) == set()

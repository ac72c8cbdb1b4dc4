"""The getting-started page from a broker to a quota, run command by command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from system_tests.harness.brokers import start_minibroker
from system_tests.harness.waiting import SPARK_PATIENCE_S

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

PAGE: Final = Path(__file__).parents[2] / "docs" / "getting-started-pipeline.md"


def commands() -> list[str]:
    """The page's shell commands."""
    return re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_page_leads_from_a_broker_to_a_throttle(tmp_path: Path) -> None:
    start, *rest = commands()
    program, command, *options = shlex.split(start)
    assert (program, command) == ("minibroker", "start")
    broker = start_minibroker(*_with_folder(options, tmp_path))
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\necho ---next\n".join(rest)],
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "MINIBROKER_BOOTSTRAP_SERVER": broker.bootstrap_servers,
            },
            capture_output=True,
            text=True,
            timeout=SPARK_PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert broker.stop() == 0
    finally:
        broker.forget()
    print(done.stdout)  # pytest -s shows what a reader sees
    loaded, ingested, applied, hurried, usage = done.stdout.split("---next\n")
    assert "Throttle: 0 ms" in loaded or "no quota" in loaded
    assert "events ingested into activity" in ingested
    assert "producer_byte_rate=" in applied
    assert "applies: the first of these that is set" in hurried
    held = re.search(
        r"^producer_byte_rate .* ([\d,]+) +[\d.]+ m?s +[\d.]+ m?s$", usage, re.MULTILINE
    )
    assert held is not None
    assert int(held[1]) > 0


def _with_folder(options: list[str], folder: Path) -> list[str]:
    return [str(folder / word) if word == "data" else word for word in options]

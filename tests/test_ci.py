from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SUITE = """
import pytest

def test_that_passes(): pass

@pytest.mark.skip(reason="no such tool")
def test_that_is_left_out(): pass
"""
FAILING = SUITE + "\ndef test_that_fails(): assert 0\n"


def totals(pytester: pytest.Pytester, suite: str, **environment: str) -> tuple[int, str]:
    """Exit code and words of the totals of one run of ``suite``."""
    pytester.makepyfile(suite)
    pytester.runpytest_inprocess("--junitxml=suite.xml", "-p", "no:randomly")
    ended = subprocess.run(
        [sys.executable, str(ROOT / ".ci/totals.py"), "suite.xml"],
        cwd=pytester.path,
        env={**os.environ, "CI": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout


def test_what_is_left_out_is_named_and_allowed_at_a_desk(pytester: pytest.Pytester) -> None:
    code, words = totals(pytester, SUITE)
    assert code == 0
    assert words.startswith("suite: 1 passed, 0 failed, 1 left out")
    assert "test_that_is_left_out: no such tool" in words


def test_in_ci_nothing_may_be_left_out(pytester: pytest.Pytester) -> None:
    assert totals(pytester, SUITE, CI="true")[0] == 1


def test_what_does_not_apply_is_not_left_out(pytester: pytest.Pytester) -> None:
    suite = SUITE.replace("no such tool", "does not apply: this client has none")
    assert totals(pytester, suite, CI="true") == (0, "suite: 1 passed, 0 failed, 0 left out, 0 s\n")


def test_a_failure_is_one_everywhere(pytester: pytest.Pytester) -> None:
    code, words = totals(pytester, FAILING)
    assert code == 1
    assert words.startswith("suite: 1 passed, 1 failed, 1 left out")


def test_a_report_that_is_missing_is_a_failure(pytester: pytest.Pytester) -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / ".ci/totals.py"), "none.xml"], check=False, capture_output=True
    )
    assert ended.returncode == 1


@pytest.mark.parametrize(("environment", "code"), [({}, 0), ({"CI": "true"}, 1)])
def test_missing_toolchains_are_named(
    tmp_path: Path, environment: dict[str, str], code: int
) -> None:
    for tool in ("bash", "env"):
        (tmp_path / tool).symlink_to(Path("/usr/bin") / tool)
    ended = subprocess.run(
        [str(ROOT / ".ci/toolchains")],
        env={"PATH": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code
    assert "not found: java mvn" in ended.stderr


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_pins_everything_that_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        asked += extra
    wanted = {canonical(re.split(r"[\[><=~]", item)[0]) for item in asked} - {"minibroker"}
    lock = (ROOT / ".ci/requirements.lock").read_text().splitlines()
    pinned = {canonical(line.split("==")[0]) for line in lock if "==" in line}
    assert wanted <= pinned


def test_help_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split()
    assert set(re.findall(r"^([a-z-]+):.*?##", makefile, re.MULTILINE)) == {*phony} - {"docs-check"}

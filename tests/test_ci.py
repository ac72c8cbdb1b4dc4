from __future__ import annotations

import os
import re
import shutil
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


def test_skipped_tests_are_named_and_allowed_outside_of_ci(pytester: pytest.Pytester) -> None:
    code, words = totals(pytester, SUITE)
    assert code == 0
    assert words.startswith("suite: 1 passed, 0 failed, 1 left out")
    assert "test_that_is_left_out: no such tool" in words


def test_ci_fails_on_skipped_tests(pytester: pytest.Pytester) -> None:
    assert totals(pytester, SUITE, CI="true")[0] == 1


def test_tests_that_do_not_apply_are_not_counted_as_skipped(pytester: pytest.Pytester) -> None:
    suite = SUITE.replace("no such tool", "does not apply: this client has none")
    code, words = totals(pytester, suite, CI="true")
    assert code == 0
    assert re.fullmatch(r"suite: 1 passed, 0 failed, 0 left out, \d+ s\n", words)


def test_failure_is_one_everywhere(pytester: pytest.Pytester) -> None:
    code, words = totals(pytester, FAILING)
    assert code == 1
    assert words.startswith("suite: 1 passed, 1 failed, 1 left out")


def test_run_without_tests_is_a_failure(pytester: pytest.Pytester) -> None:
    code, words = totals(pytester, "")
    assert code == 1
    assert words.endswith("no test ran\n")


def test_report_that_is_missing_is_a_failure(pytester: pytest.Pytester) -> None:
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
    assert "not found: chromium chromedriver" in ended.stderr


def install_packages(folder: Path, **programs: str) -> tuple[int, str]:
    """Exit code and words of `.ci/packages` where only these programs can be found."""
    for tool in ("bash", "env"):
        (folder / tool).symlink_to(Path("/usr/bin") / tool)
    for name, script in programs.items():
        (folder / name.replace("_", "-")).write_text(f"#!{folder}/bash\n{script}\n")
        (folder / name.replace("_", "-")).chmod(0o755)
    ended = subprocess.run(
        [str(ROOT / ".ci/packages")],
        env={"PATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout


PROGRAMS = ("chromium", "chromedriver", "zsh", "fish", "promtool", "jq", "ip")
HEADERS = {"cc": ""}  # A compiler that finds all of them.


def test_installed_programs_are_not_reinstalled(tmp_path: Path) -> None:
    assert install_packages(tmp_path, **dict.fromkeys(PROGRAMS, "exit 1"), **HEADERS) == (0, "")


def test_missing_header_is_reported(tmp_path: Path) -> None:
    programs = dict.fromkeys(PROGRAMS, "exit 1")
    code, words = install_packages(tmp_path, **programs, cc="exit 1")
    assert (code, words) == (1, "tests need zstd.h, and there is no apt-get to install them with\n")


@pytest.mark.parametrize(("user", "prefix"), [("0", ""), ("1000", "sudo ")])
def test_missing_program_is_installed(user: str, prefix: str, tmp_path: Path) -> None:
    code, words = install_packages(
        tmp_path,
        **dict.fromkeys(set(PROGRAMS) - {"chromedriver"}, ""),
        id=f"echo {user}",
        sudo='shift; export BY="sudo "; exec "$@"',
        apt_get='echo "${BY:-}$*"',
    )
    update, install = words.splitlines()
    assert code == 0
    assert update == f"{prefix}update -qq -o Acquire::Retries=5"
    assert install.startswith(f"{prefix}install -y")
    assert "-o Acquire::Retries=5" in install
    for package in ("chromium chromium-driver", "zsh", "fish", "prometheus", "jq", "iproute2"):
        assert package in install


@pytest.mark.parametrize(
    ("programs", "reason"),
    [
        ({}, "there is no apt-get"),
        ({"apt_get": "", "id": "echo 1000"}, "installing them takes root or sudo"),
        ({"apt_get": "exit 1", "id": "echo 0"}, "apt-get update failed"),
        ({"apt_get": '[[ "$1" == update ]]', "id": "echo 0"}, "could not install them"),
    ],
)
def test_program_that_cannot_be_installed_is_reported(
    programs: dict[str, str], reason: str, tmp_path: Path
) -> None:
    code, words = install_packages(tmp_path, **programs, **HEADERS)
    assert code == 1
    assert f"tests need {' '.join(PROGRAMS)}, and" in words
    assert reason in words


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_lock_pins_everything_that_is_asked_for() -> None:
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


def make_an_environment(folder: Path, interpreters: dict[str, str]) -> tuple[int, str]:
    """Exit code and words of making `.venv` where only these interpreters can be found."""
    tools = folder / "tools"
    tools.mkdir()
    for tool in ("bash", "make", "sh", "mkdir", "rm", "touch"):
        (tools / tool).symlink_to(Path(shutil.which(tool) or tool))
    for name, script in interpreters.items():
        (tools / name).write_text(f"#!{tools}/bash\n{script}\n")
        (tools / name).chmod(0o755)
    ended = subprocess.run(
        ["make", "-f", str(ROOT / "Makefile"), ".venv/bin/python"],
        cwd=folder,
        env={"PATH": str(tools)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout


GOOD = """case "$*" in
    --version) echo "Python 3.12.1" ;;
    "-m venv"*) mkdir -p .venv/bin && touch .venv/bin/python ;;
esac"""
SHIM = "echo 'no such version is set' >&2; exit 127"
OLD = 'case "$1" in -c) exit 1 ;; esac'


def test_interpreter_that_is_only_a_name_or_old_is_passed_over(tmp_path: Path) -> None:
    interpreters = {"python3": OLD, "python3.13": SHIM, "python3.12": GOOD}
    code, words = make_an_environment(tmp_path, interpreters)
    assert (code, words) == (0, "creating .venv with Python 3.12.1\n")


def test_missing_interpreter_is_reported(tmp_path: Path) -> None:
    code, words = make_an_environment(tmp_path, {"python3": OLD})
    assert code
    assert "minibroker needs Python 3.11 or newer" in words


def test_half_an_environment_is_not_left_for_the_next_try(tmp_path: Path) -> None:
    half = GOOD.replace("touch .venv/bin/python", "touch .venv/bin/python && exit 1")
    code, _ = make_an_environment(tmp_path, {"python3": half})
    assert code
    assert not (tmp_path / ".venv").exists()

"""Modules of a user's project do not disturb our processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.python_command import python_command
from minibroker.testing.workload import CLIENTS

SHADOWED = ("protocol", "select", "trio", "h11", "json")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory: a project with modules that have names of others."""
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a module of the project')\n")
    (tmp_path / "of_the_project.py").write_text("NAME = 'seen'\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(program: str, *arguments: str) -> str:
    command = python_command(program, *arguments)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_installed_modules_are_found_before_those_of_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project)
    assert run("import select, trio, h11, json, minibroker_protocol.registry; print('ok')") == "ok"


@pytest.mark.parametrize("entry", ["", "absolute"])
def test_module_that_only_this_process_can_import_is_found(
    project: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    monkeypatch.syspath_prepend(entry and str(project))
    assert run("import of_the_project; print(of_the_project.NAME)") == "seen"


def test_broker_and_proxy_of_a_test_run_in_such_a_project(project: Path) -> None:
    run_test(
        project,
        "from minibroker.testing import MiniBroker, MiniProxy\n"
        "def test_it():\n"
        "    with MiniBroker() as broker, MiniProxy(broker.bootstrap_servers) as proxy:\n"
        "        assert proxy.bootstrap_servers\n",
    )


def test_shared_broker_of_the_plugin_runs_in_such_a_project(project: Path) -> None:
    run_test(project, "def test_it(minibroker, minibroker_topic):\n    assert minibroker.pid\n")


def run_test(project: Path, text: str) -> None:
    test = project / "test_it.py"
    test.write_text(text)
    for name in ("json", "select"):  # A test process itself needs the real ones.
        (project / f"{name}.py").unlink()
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_command_line_starts_a_broker_in_such_a_project(project: Path) -> None:
    options = ["--json", "--listener", "PLAINTEXT://127.0.0.1:0", "--exit-with-parent"]
    # As the script `minibroker`, which pip writes, and as a module.
    script = project / "bin" / "minibroker"
    script.parent.mkdir()
    script.write_text("from minibroker.cli import main\nmain()\n")
    for command in ([sys.executable, str(script)], [sys.executable, "-m", "minibroker"]):
        with subprocess.Popen(
            [*command, "start", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as broker:
            assert broker.stdout is not None
            assert json.loads(broker.stdout.readline())["event"] == "ready", command


@pytest.mark.parametrize("command", CLIENTS.values(), ids=CLIENTS)
def test_client_of_a_workload_runs_in_such_a_project(project: Path, command: list[str]) -> None:
    done = subprocess.run(command, check=False, input="", capture_output=True, text=True)
    assert "RuntimeError" not in done.stderr


def test_processes_of_an_isolated_one_ignore_the_environment(project: Path) -> None:
    root = Path(__file__).parent.parent
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r}); from minibroker.python_command import *;"
        " import subprocess; subprocess.run(python_command('import trio'), check=True)"
    )
    environment = {**os.environ, "PYTHONPATH": str(project)}
    command = [sys.executable, "-I", "-c", program]
    assert subprocess.run(command, check=False, env=environment).returncode == 0


def test_program_gets_its_arguments() -> None:
    assert run("print(sys.argv[1:])", "a b", "c") == "['a b', 'c']"

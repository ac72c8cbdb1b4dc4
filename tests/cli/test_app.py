from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from minibroker import __version__
from minibroker.cli.app import LATE, app


def commands(group: click.Group = app, *before: str) -> Iterator[list[str]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *before, name)
        else:
            yield [*before, name]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_help_of_every_command_shows_examples(words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"minibroker {' '.join(words)}" in result.output.partition("Examples:")[2]


WITHOUT_JSON = {
    "completion": "prints a script",
    "learn": "prints texts to read",
}


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_command_that_prints_data_has_json(words: list[str]) -> None:
    command: click.Command = app
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    has_json = any("--json" in param.opts for param in command.params)
    assert has_json != (" ".join(words) in WITHOUT_JSON)


def test_help_lists_the_exit_codes() -> None:
    assert "3 broker unreachable" in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize(
    ("file", "kind"),
    [("selector.py", ""), ("selector.cpython-311.so", ", compiled")],
)
def test_version_option_prints_version(
    monkeypatch: pytest.MonkeyPatch, file: str, kind: str
) -> None:
    found = ModuleSpec(
        "minibroker.broker.network.request_loop", None, origin=f"/lib/network/{file}"
    )
    monkeypatch.setattr("minibroker.cli.app.find_spec", lambda _: found)
    assert CliRunner().invoke(app, ["--version"]).output == f"minibroker {__version__}{kind}\n"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minibroker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["strat"], 2, "Did you mean 'start'?"),
        (["topics", "list", "-b", "nowhere"], 2, "write host:port"),
        (["topics", "list", "-b", "127.0.0.1:1"], 3, "nothing listens on 127.0.0.1:1"),
        (["start", "--config", "nowhere.properties"], 2, "there is no such file"),
        (["start", "--set", "num.partition=1"], 4, "did you mean num.partitions?"),
        (["settings", "explain", "zzz"], 2, "there is no setting zzz"),
    ],
)
def test_mistakes_exit_with_message_and_code(arguments: list[str], code: int, words: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == code
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_modules_of_the_working_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("protocol", "select", "trio", "click"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a module of the project')\n")
    monkeypatch.chdir(tmp_path)
    assert "num.partitions" in run("settings", "list").stdout


def test_closed_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m minibroker settings list | head -n 1"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert ended.stdout.startswith("SETTING")
    assert not ended.stderr
    assert ended.returncode == 0


def test_unwritable_output_exits_with_the_reason() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "minibroker", "settings", "list"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.stderr == (
        "minibroker: standard output cannot be written: No space left on device\n"
    )
    assert ended.returncode == 1


@pytest.mark.parametrize("name", LATE)
def test_list_of_commands_has_the_help_of_each_command(name: str) -> None:
    command = app.get_command(click.Context(app), name)
    assert command is not None
    assert command.name == name
    assert command.help == LATE[name].help

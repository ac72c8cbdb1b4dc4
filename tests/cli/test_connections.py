"""``minibroker connections``: printed once, as JSON, and redrawn until the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from minibroker.broker.settings.types import HostPort
from minibroker.cli import connections as command_module
from minibroker.cli.connections import CLEAR, HIDE_CURSOR, HOME, SHOW_CURSOR
from minibroker.cli.control import ControlClient
from minibroker.cli.errors import CliError
from tests.cli.test_connections_view import answer

Command = Callable[..., Any]


class Playing(ControlClient):
    """A control API with these responses, which then stops."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(HostPort("127.0.0.1", 1))
        self.answers = list(answers)

    def get(self, path: str) -> bytes:
        assert path == "/v1/connections"
        if not self.answers:
            raise CliError("the broker is gone")
        return json.dumps(self.answers.pop(0)).encode() + b"\n"


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Playing]:
    """Replace the control API that a command finds."""

    def begin(*answers: Any) -> Playing:
        playing = Playing(*answers)
        monkeypatch.setattr(command_module, "find_control", lambda *_: playing)
        return playing

    return begin


def test_output_to_a_pipe_is_printed_once_and_complete(
    command: Command, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # It may be set in the environment of the tests.
    play(answer())
    result = command("connections", "-b", "unused:1")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert result.stdout.startswith("4/40 connections, 12.3 new ones a second")
    assert result.stdout.rstrip().endswith("raise or remove it.")


def test_columns_variable_truncates_lines(
    command: Command, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    play(answer())
    result = command("connections", "--once", "-b", "unused:1")
    assert max(map(len, result.stdout.splitlines())) == 30


def test_json_option_prints_the_response(command: Command, play: Any) -> None:
    play(answer(total=7))
    result = command("connections", "--json", "-b", "unused:1")
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["total"] == 7


def test_connections_of_running_broker_are_printed(command: Command) -> None:
    result = command("connections")
    assert result.exit_code == 0
    assert "PLAINTEXT" in result.stdout
    assert "processor-0" in result.stdout


class Terminal:
    """Run on a terminal of the given size until interrupted; return the output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
        self.slept: list[float] = []
        self.looks = looks
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setenv("LINES", "20")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setattr("minibroker.cli.connections.time.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self.looks:
            raise KeyboardInterrupt


def test_view_is_redrawn_until_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(monkeypatch, looks=2)
    monkeypatch.delenv("NO_COLOR", raising=False)
    command_module._watch(Playing(answer(), answer(total=39)), 0.5)
    assert terminal.slept == [0.5, 0.5]
    drawn = capsys.readouterr().out
    assert drawn.startswith(CLEAR + HIDE_CURSOR + HOME)
    first, second = drawn.split(HOME)[1:]
    assert first.startswith("4/40 connections")
    assert second.startswith("39/40 connections")
    assert first.count("\n") <= 19
    assert "\x1b[31m4/4\x1b[0m" in first
    assert drawn.endswith(SHOW_CURSOR)


def test_no_color_variable_disables_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Terminal(monkeypatch, looks=1)
    monkeypatch.setenv("NO_COLOR", "1")
    command_module._watch(Playing(answer()), 0.5)
    assert "\x1b[31m" not in capsys.readouterr().out


def test_cursor_is_restored_when_the_broker_stops(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Terminal(monkeypatch, looks=9)
    with pytest.raises(CliError, match="gone"):
        command_module._watch(Playing(answer()), 0.5)
    assert capsys.readouterr().out.endswith(SHOW_CURSOR)

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from minibroker.cli.commands import Argument, Command, CommandGroup, LazyCommand

LATER = "cats_that_think"


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandGroup:
    """A group with a command in a separate module, which is not imported yet."""
    (tmp_path / f"{LATER}.py").write_text(
        "import click\n@click.command()\ndef think():\n    click.echo('Hm.')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, LATER, raising=False)
    made = CommandGroup("cats", late={"think": LazyCommand(LATER, "think", "Think it over.")})
    made.add_command(click.Command("purr", help="Purr."))
    made.add_command(click.Command("climb", help="Climb."))
    return made


@click.command("eat", cls=Command)
@click.argument("meal", cls=Argument, about="What to eat.")
@click.argument("sides", cls=Argument, nargs=-1, metavar="[SIDE]...", about="What comes with it.")
@click.option("--fast", is_flag=True, help="In a hurry.")
def eat(meal: str, sides: tuple[str, ...], fast: bool) -> None:
    """Eat."""


def test_group_help_lists_commands_without_importing_them(group: CommandGroup) -> None:
    listed = CliRunner().invoke(group, ["--help"]).output.partition("Commands:\n")[2]
    assert [line.split(maxsplit=1) for line in listed.splitlines()] == [
        ["think", "Think it over."],
        ["purr", "Purr."],
        ["climb", "Climb."],
    ]
    assert LATER not in sys.modules


def test_late_command_is_imported_when_called(group: CommandGroup) -> None:
    assert CliRunner().invoke(group, ["think"]).output == "Hm.\n"
    assert LATER in sys.modules


def test_misspelt_command_suggests_the_nearest(group: CommandGroup) -> None:
    result = CliRunner().invoke(group, ["thin"])
    assert result.exit_code == 2
    assert "No such command 'thin'. Did you mean 'think'?" in result.output


def test_unknown_command_suggests_nothing(group: CommandGroup) -> None:
    assert CliRunner().invoke(group, ["bark"]).output.endswith("No such command 'bark'.\n")


def test_unknown_option_before_command_is_rejected(group: CommandGroup) -> None:
    said = CliRunner().invoke(group, ["--bark"], prog_name="cats").output
    assert "No such option" in said
    assert said.endswith("Options come after the command: cats COMMAND --bark\n")


def test_command_written_as_option_suggests_the_command(group: CommandGroup) -> None:
    """Kafka's tools have ``--list`` and ``--describe``."""
    said = CliRunner().invoke(group, ["--purr"], prog_name="cats").output
    assert said.endswith("No such option '--purr'. Did you mean cats purr?\n")


def test_help_lists_arguments_before_options() -> None:
    lines = CliRunner().invoke(eat, ["--help"]).output.splitlines()
    assert lines[0] == "Usage: eat [OPTIONS] MEAL [SIDE]..."
    start = lines.index("Arguments:")
    assert [line.split(maxsplit=1) for line in lines[start + 1 : start + 3]] == [
        ["MEAL", "What to eat.  [required]"],
        ["[SIDE]...", "What comes with it."],
    ]
    assert lines.index("Options:") > start


def test_missing_argument_is_named_as_in_usage() -> None:
    assert "Missing argument 'MEAL'." in CliRunner().invoke(eat, []).output

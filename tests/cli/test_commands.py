from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from minibroker.cli.commands import Argument, Command, Group, Late

LATER = "cats_that_think"


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    """Has a command that is in a module of its own, which nothing has imported yet."""
    (tmp_path / f"{LATER}.py").write_text(
        "import click\n@click.command()\ndef think():\n    click.echo('Hm.')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, LATER, raising=False)
    made = Group("cats", late={"think": Late(LATER, "think", "Think it over.")})
    made.add_command(click.Command("purr", help="Purr."))
    made.add_command(click.Command("climb", help="Climb."))
    return made


@click.command("eat", cls=Command)
@click.argument("meal", cls=Argument, about="What to eat.")
@click.argument("sides", cls=Argument, nargs=-1, metavar="[SIDE]...", about="What comes with it.")
@click.option("--fast", is_flag=True, help="In a hurry.")
def eat(meal: str, sides: tuple[str, ...], fast: bool) -> None:
    """Eat."""


def test_help_lists_commands_in_their_order_and_imports_none(group: Group) -> None:
    listed = CliRunner().invoke(group, ["--help"]).output.partition("Commands:\n")[2]
    assert [line.split(maxsplit=1) for line in listed.splitlines()] == [
        ["think", "Think it over."],
        ["purr", "Purr."],
        ["climb", "Climb."],
    ]
    assert LATER not in sys.modules


def test_a_command_is_imported_when_it_is_called(group: Group) -> None:
    assert CliRunner().invoke(group, ["think"]).output == "Hm.\n"
    assert LATER in sys.modules


def test_a_name_like_another_is_answered_with_that_one(group: Group) -> None:
    result = CliRunner().invoke(group, ["thin"])
    assert result.exit_code == 2
    assert "No such command 'thin'. Did you mean 'think'?" in result.output


def test_a_name_like_no_other_is_answered_without_a_guess(group: Group) -> None:
    assert CliRunner().invoke(group, ["bark"]).output.endswith("No such command 'bark'.\n")


def test_an_option_that_is_none_is_not_taken_for_a_command(group: Group) -> None:
    said = CliRunner().invoke(group, ["--bark"], prog_name="cats").output
    assert "No such option" in said
    assert said.endswith("Options come after the command: cats COMMAND --bark\n")


def test_a_command_written_as_an_option_is_answered_with_the_command(group: Group) -> None:
    """Kafka's tools have ``--list`` and ``--describe``."""
    said = CliRunner().invoke(group, ["--purr"], prog_name="cats").output
    assert said.endswith("No such option '--purr'. Did you mean cats purr?\n")


def test_arguments_are_told_before_options() -> None:
    lines = CliRunner().invoke(eat, ["--help"]).output.splitlines()
    assert lines[0] == "Usage: eat [OPTIONS] MEAL [SIDE]..."
    told = lines.index("Arguments:")
    assert [line.split(maxsplit=1) for line in lines[told + 1 : told + 3]] == [
        ["MEAL", "What to eat.  [required]"],
        ["[SIDE]...", "What comes with it."],
    ]
    assert lines.index("Options:") > told


def test_a_missing_argument_is_named_as_in_the_usage() -> None:
    assert "Missing argument 'MEAL'." in CliRunner().invoke(eat, []).output

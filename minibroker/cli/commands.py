"""Extensions of click: commands that are imported late, and help for arguments.

Owns the classes of groups, commands and arguments. It must never know a single command. Invariant:
a group's help imports none of its commands, and a command imports only itself, because every test
run with a broker waits for ``start``. Arguments are described like options; click 8.5 does this,
too, but with other words, and older versions do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def examples(*commands: str, after: str = "") -> str:
    """Return the end of a command's help: example commands, one a line, and further text."""
    lines = "\n".join(f"  {command}" for command in commands)
    return "\n\n".join(["Examples:", f"\b\n{lines}", *filter(None, [after])]) + "\n"


class LazyCommand(NamedTuple):
    """A command that is imported when it is called."""

    module: str
    name: str
    """Name of the command in its module."""
    help: str
    """Line in the list of commands."""


class Argument(click.Argument):
    """An argument with a line of help."""

    def __init__(self, names: Sequence[str], *, about: str, **others: Any) -> None:
        super().__init__(names, **others)
        self.about = about

    @property
    def row(self) -> tuple[str, str]:
        """Return the argument's name and line of help."""
        return self.human_readable_name, self.about + ("  [required]" if self.required else "")


class Command(click.Command):
    """A command whose help describes arguments before options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [item.row for item in self.params if isinstance(item, Argument)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


class CommandGroup(click.Group):
    """A group that lists commands in definition order; those in ``late`` are imported when used."""

    command_class = Command

    def __init__(
        self, name: str, *, late: Mapping[str, LazyCommand] | None = None, **others: Any
    ) -> None:
        super().__init__(name, **others)
        self._late = dict(late or {})

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*self._late, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        late = self._late.get(cmd_name)
        if late is None:
            return super().get_command(ctx, cmd_name)
        from importlib import import_module

        command: click.Command = getattr(import_module(late.module), late.name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [
            *(
                CompletionItem(name, help=self._line(name))
                for name in self.list_commands(ctx)
                if name.startswith(incomplete)
            ),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.list_commands(ctx) and not name.startswith("-"):
            ctx.fail(f"No such command '{name}'.{self._nearest(ctx, name)}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            if (command := name.lstrip("-")) in self.list_commands(
                ctx
            ):  # Kafka's tools use options instead.
                instead = f"Did you mean {ctx.command_path} {command}?"
            else:
                instead = f"Options come after the command: {ctx.command_path} COMMAND {name}"
            message = f"{error.message} {instead}"
            raise click.NoSuchOption(name, message, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._line(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _line(self, name: str) -> str:
        late = self._late.get(name)
        return self.commands[name].help or "" if late is None else late.help

    def _nearest(self, ctx: click.Context, name: str) -> str:
        import difflib

        suggestions = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
        return f" Did you mean '{suggestions[0]}'?" if suggestions else ""

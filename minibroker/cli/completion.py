"""``minibroker completion``: what a shell needs to complete commands, options, topics and groups.

Owns the scripts for shells and the completion of names that a broker knows. It must never fail or
delay the prompt: without a broker, names are not completed. Invariant: completing a command imports
no other command. Kafka's scripts have no completion; click does the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import get_completion_class, shell_complete

from minibroker.cli.commands import Argument, Command, examples
from minibroker.cli.output import InvalidUsage, emit

if TYPE_CHECKING:
    from minibroker.client.kafka_client import KafkaClient

PROGRAM: Final = "minibroker"
VARIABLE: Final = "_MINIBROKER_COMPLETE"
"""The environment variable by which a shell's script asks for completions."""

SHELLS: Final = ("bash", "zsh", "fish")
BROKER_TIMEOUT_S: Final = 1.0

EXAMPLES = examples(
    'eval "$(minibroker completion bash)"',
    "minibroker completion zsh > ~/.zsh/functions/_minibroker",
    "minibroker completion fish > ~/.config/fish/completions/minibroker.fish",
    after="""Put the first line into ~/.bashrc; for zsh, name a folder of its fpath. Names of topics
and groups are completed from the broker of --bootstrap-server, if it answers within a second.""",
)


@click.command("completion", cls=Command, epilog=EXAMPLES)
@click.argument("shell", cls=Argument, type=click.Choice(SHELLS), about="bash, zsh or fish.")
def completion(shell: str) -> None:
    """Print the script that lets a shell complete minibroker's commands and options."""
    found = get_completion_class(shell)
    if found is None:
        raise InvalidUsage(f"{shell}: click has no completion for it")
    emit(found(click.Command(PROGRAM), {}, PROGRAM, VARIABLE).source())


def answer_shell(app: click.Command) -> int:
    """Answer a shell that asks for completions; return the exit code."""
    try:
        return shell_complete(app, {}, PROGRAM, VARIABLE, os.environ[VARIABLE])
    except click.ClickException:
        return 0  # What was typed so far is no valid command, so nothing completes it.


def complete_topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a topic."""
    return _from_broker(ctx, incomplete, _topics)


def complete_groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a group."""
    return _from_broker(ctx, incomplete, _groups)


def _from_broker(
    ctx: click.Context, incomplete: str, names: Callable[[KafkaClient], Sequence[str]]
) -> list[str]:
    from minibroker.client.connection import PLAINTEXT
    from minibroker.client.errors import ClientError
    from minibroker.client.kafka_client import KafkaClient
    from minibroker.client.security import read_client_security

    config = ctx.params.get("command_config")
    try:
        access = PLAINTEXT if config is None else read_client_security(config)
        with KafkaClient(ctx.params["bootstrap"], access, BROKER_TIMEOUT_S) as client:
            return sorted(name for name in names(client) if name.startswith(incomplete))
    except (ClientError, OSError):
        return []


def _topics(client: KafkaClient) -> list[str]:
    return [topic.name or "" for topic in client.metadata().topics if not topic.is_internal]


def _groups(client: KafkaClient) -> list[str]:
    return [group.group_id for group in client.groups()]

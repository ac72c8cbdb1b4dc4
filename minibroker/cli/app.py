"""The application: all commands and the first page of help.

Owns the tree of commands. It must never know what a command does. Invariant: importing this module
imports no command, so help and usage errors are fast, client commands import nothing of the broker,
and ``start`` imports nothing of the client.
"""

from __future__ import annotations

from importlib.util import find_spec

import click

from minibroker import __version__
from minibroker.cli.commands import CommandGroup, LazyCommand
from minibroker.cli.output import EXIT_CODES_HELP

HELP = """A Kafka broker for tests, experiments and learning, and commands to talk to one.

\b
  minibroker start                            a broker on 127.0.0.1:9092
  minibroker topics create cats --partitions 3
  echo hello | minibroker produce cats
  minibroker consume cats --from-beginning
"""

LATE = {
    "start": LazyCommand(
        "minibroker.cli.start", "start", "Start a broker and run it until it is stopped."
    ),
    "client-config": LazyCommand(
        "minibroker.cli.client_config",
        "client_config_command",
        "Print the configuration of a client for a broker started with --tls or --sasl.",
    ),
    "proxy": LazyCommand(
        "minibroker.cli.proxy",
        "proxy",
        "Run a proxy in front of a Kafka cluster until it is stopped.",
    ),
    "produce": LazyCommand(
        "minibroker.cli.produce", "produce", "Send messages: arguments, or lines of standard input."
    ),
    "consume": LazyCommand("minibroker.cli.consume", "consume", "Print messages as they arrive."),
    "request": LazyCommand(
        "minibroker.cli.request", "request", "Send one request of any API and print the response."
    ),
    "dissect": LazyCommand(
        "minibroker.cli.dissect",
        "dissect_command",
        "Show what every byte of requests, a response or a log segment means.",
    ),
    "check": LazyCommand(
        "minibroker.cli.check",
        "check_command",
        "Find lost, doubled and reordered records and other anomalies in a history.",
    ),
    "judge": LazyCommand(
        "minibroker.cli.judge",
        "judge_command",
        "Say which rules of good behavior a client kept and broke.",
    ),
    "record": LazyCommand(
        "minibroker.cli.replay",
        "record",
        "Record what all clients of a broker request, and the responses, until Ctrl-C.",
    ),
    "replay": LazyCommand(
        "minibroker.cli.replay",
        "replay",
        "Send the requests of a capture to a broker, or give its responses to clients.",
    ),
    "topics": LazyCommand(
        "minibroker.cli.topics", "app", "List, create, describe, alter and delete topics."
    ),
    "groups": LazyCommand(
        "minibroker.cli.groups", "app", "List, describe, reset and delete consumer groups."
    ),
    "acls": LazyCommand("minibroker.cli.acls", "app", "List, add and remove ACLs."),
    "configs": LazyCommand(
        "minibroker.cli.configs",
        "configs",
        "Describe and alter configs and quotas as kafka-configs.sh does.",
    ),
    "top": LazyCommand(
        "minibroker.cli.top", "top", "Show clients, topics and groups live, and who is throttled."
    ),
    "connections": LazyCommand(
        "minibroker.cli.connections",
        "connections",
        "Show connections live, and why connections were rejected.",
    ),
    "quotas": LazyCommand(
        "minibroker.cli.quotas",
        "app",
        "Show usage of quotas, and why a client is throttled.",
    ),
    "faults": LazyCommand(
        "minibroker.cli.faults",
        "app",
        "Make the broker misbehave on request: errors, delays, disconnects.",
    ),
    "clock": LazyCommand(
        "minibroker.cli.clock", "app", "Show, advance, freeze and speed up the broker's clock."
    ),
    "security": LazyCommand(
        "minibroker.cli.security",
        "app",
        "Change certificates and tokens of a broker started with --tls or --sasl oauth.",
    ),
    "trace": LazyCommand(
        "minibroker.cli.trace",
        "trace",
        "Print requests, responses and other events as they happen.",
    ),
    "pipeline": LazyCommand(
        "minibroker.cli.pipeline",
        "app",
        "Analyse recorded broker activity with Spark.",
    ),
    "settings": LazyCommand("minibroker.cli.settings", "app", "List and explain settings."),
    "learn": LazyCommand(
        "minibroker.cli.learn",
        "learn",
        "Learn how a broker works: predict what it will do, and see what it does.",
    ),
    "completion": LazyCommand(
        "minibroker.cli.completion",
        "completion",
        "Print the script that lets a shell complete minibroker's commands and options.",
    ),
}

app = CommandGroup(
    "minibroker",
    late=LATE,
    help=HELP,
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)


def _print_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        # Compiled or not as a whole; this module is one that is compiled.
        found = find_spec("minibroker.broker.network.request_loop")
        is_compiled = found is not None and not str(found.origin).endswith(".py")
        click.echo(f"minibroker {__version__}{', compiled' if is_compiled else ''}")
        context.exit()


click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print it.",
)(app)

"""The command line: what a person types, and what they read.

Owns the entry point and what a failed command says last. It must never hold behaviour of the
broker: every command but ``start`` talks to a broker over Kafka's protocol, as any client does.
Invariant: `main` ends with one of the exit codes of `minibroker.cli.errors` and never a traceback
for a mistake that a person can make. Kafka's counterparts are the scripts in its ``bin`` folder.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command that ``sys.argv`` names; always raises `SystemExit`."""
    import os
    import sys

    import click

    from minibroker.cli.app import app
    from minibroker.cli.errors import (
        CliError,
        ExitCode,
        OutputFailed,
        error_message,
        exit_code,
    )
    from minibroker.client.errors import ClientError

    try:
        with app.make_context("minibroker", sys.argv[1:]) as context:
            app.invoke(context)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as mistake:
        mistake.show()
        sys.exit(mistake.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except (OutputFailed, BrokenPipeError) as error:
        # What could not be written is still buffered and would fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, OutputFailed):
            # The reader of the output has ended: `minibroker consume … | head`.
            sys.exit(ExitCode.OK)
        print(f"minibroker: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (CliError, ClientError) as error:
        print(f"minibroker: {error_message(error)}", file=sys.stderr)
        sys.exit(exit_code(error))

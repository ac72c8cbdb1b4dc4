"""The command line of minibroker.

Owns the entry point and the report of a failed command. It must never contain behaviour of the
broker: every command except ``start`` talks to a broker over Kafka's protocol, as any client does.
Invariant: `main` ends with an exit code of `minibroker.cli.output`, and a user's mistake never
causes a traceback. Kafka's counterparts are the scripts in its ``bin`` folder.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command that ``sys.argv`` names; always raises `SystemExit`."""
    import os
    import sys

    from minibroker.platforms import refusal

    if (reason := refusal()) is not None:
        sys.exit(f"minibroker: {reason}")

    import click

    from minibroker.cli.app import app
    from minibroker.cli.output import (
        CliError,
        ExitCode,
        OutputFailed,
        error_message,
        exit_code,
    )
    from minibroker.client.errors import ClientError

    if "_MINIBROKER_COMPLETE" in os.environ:
        from minibroker.cli.completion import answer_shell

        sys.exit(answer_shell(app))
    try:
        with app.make_context("minibroker", sys.argv[1:]) as context:
            app.invoke(context)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as mistake:
        mistake.show()
        sys.exit(mistake.exit_code)
    except (KeyboardInterrupt, click.Abort):  # The second: at a question, also if input ended.
        sys.exit(ExitCode.INTERRUPTED)
    except (OutputFailed, BrokenPipeError) as error:
        # Unwritten output is still buffered, and writing it would fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, OutputFailed):
            # The reader of the pipe has exited: `minibroker consume … | head`.
            sys.exit(ExitCode.OK)
        print(f"minibroker: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (CliError, ClientError) as error:
        print(f"minibroker: {error_message(error)}", file=sys.stderr)
        sys.exit(exit_code(error))

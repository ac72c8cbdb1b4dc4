"""``minibroker record`` and ``minibroker replay``: captures of what clients and a broker exchanged.

Owns these commands, the file of a capture and the format of the report. It must never know what a
request means. Invariant: a line is written as the journal has it, so a capture is complete up to
its last line. Kafka has no equivalent.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Final

import click

from minibroker.cli.access import bootstrap_option
from minibroker.cli.commands import Argument, Command, examples
from minibroker.cli.control import Connect, ControlClient, control_option
from minibroker.cli.output import ExitCode, InvalidUsage, Unreachable, emit, json_line, note
from minibroker.client.connection import BootstrapServers, parse_bootstrap

if TYPE_CHECKING:
    from minibroker.lab.replay.capture import Capture
    from minibroker.lab.replay.serving import ReplayReport

WAIT_MS: Final = 500
"""How long the broker waits for further entries of the journal."""

LOST: Final = "lost"
"""Kind of an entry that represents others."""

QUERY: Final = {
    "kind": "request,response",
    "frames": "true",
    "limit": 1000,
    "wait_ms": WAIT_MS,
}
FASTEST: Final = "max"

RECORD_EXAMPLES = examples(
    "minibroker record capture.jsonl",
    "minibroker record capture.jsonl --seconds 60 --control http://127.0.0.1:8080",
    after="""The broker's journal is switched on. Frames above 64 KiB, and those that may
contain secrets, are not recorded.""",
)
REPLAY_EXAMPLES = examples(
    "minibroker replay capture.jsonl --bootstrap-server 127.0.0.1:9092",
    "minibroker replay capture.jsonl --speed max --json",
    "minibroker replay capture.jsonl --serve 127.0.0.1:9092",
    after="docs/guides/record-and-replay.md describes which ids are replaced.",
)


@click.command("record", cls=Command, epilog=RECORD_EXAMPLES)
@click.argument("target", cls=Argument, metavar="FILE", about="The capture to write.")
@click.option("--seconds", type=click.FloatRange(0), help="Stop after so many real seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@control_option
def record(target: str, seconds: float | None, as_json: bool, connect: Connect) -> None:
    """Record what all clients of a broker request, and the responses, until Ctrl-C."""
    with connect() as api:
        deadline = None if seconds is None else time.monotonic() + seconds
        last = api.post("v1", "journal", enabled=True)["last"]
        try:
            with open(target, "w", encoding="utf-8") as file:
                note(f"recording to {target}; stop with Ctrl-C")
                written, lost = _copy_entries(api, file, last, deadline)
        except OSError as error:
            raise InvalidUsage(f"{target} cannot be written: {error.strerror}") from None
    if as_json:
        emit(json_line({"file": target, "recorded": written, "lost": lost}))
        return
    missing = f"; {lost} entries of the journal are lost" if lost else ""
    note(f"recorded {written} requests and responses{missing}")


def _copy_entries(
    api: ControlClient, file: IO[str], last: int, deadline: float | None
) -> tuple[int, int]:
    """Write entries until the deadline, Ctrl-C or SIGTERM; return their number.

    Return also how many entries of any kind the broker has lost since then.
    """
    written, lost, is_over = 0, 0, False

    def stop(*_: object) -> None:
        nonlocal is_over
        is_over = True

    before = [signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)]
    try:
        while True:
            ends = is_over or (deadline is not None and time.monotonic() >= deadline)
            page = api.get("v1", "journal", query={**QUERY, "after": last})
            for entry in page["entries"]:
                file.write(json_line(entry) + "\n")
            file.flush()
            written += sum(entry["kind"] != LOST for entry in page["entries"])
            lost += sum(
                entry["details"]["entries"] for entry in page["entries"] if entry["kind"] == LOST
            )
            last = page["entries"][-1]["sequence"] if page["entries"] else last
            if ends and not page["has_more"]:
                return written, lost
    finally:
        for each, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(each, handler)


@click.command("replay", cls=Command, epilog=REPLAY_EXAMPLES)
@click.argument("source", cls=Argument, metavar="FILE", about="The capture.")
@click.option(
    "--serve", metavar="HOST:PORT", help="Answer clients there instead; 0 is a free port."
)
@click.option(
    "--speed", default="1", metavar="N|max", help="Times as fast as recorded; max does not wait."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@bootstrap_option
def replay(
    source: str, serve: str | None, speed: str, as_json: bool, servers: BootstrapServers
) -> None:
    """Send the requests of a capture to a broker, or give its responses to clients."""
    import trio

    capture, pace = _read(source), _pace(speed)
    if serve is not None:
        trio.run(_serve, capture, serve, pace, as_json)
        return
    from minibroker.lab.replay.serving import replay_load

    host, port = parse_bootstrap(servers.bootstrap)[0]

    async def run() -> ReplayReport:
        return await replay_load(capture, host, port, speed=pace)

    try:
        report = trio.run(run)
    except* OSError:
        raise Unreachable(f"no broker answers at {host}:{port}") from None
    found = _report(capture, report)
    emit(json_line(found) if as_json else _as_text(found))
    if report.unanswered or report.differing:
        raise click.exceptions.Exit(ExitCode.REFUSED)


async def _serve(capture: Capture, listener: str, speed: float | None, as_json: bool) -> None:
    import trio

    from minibroker.broker.settings.setting import BadValueError, HostPort, parse_plaintext_listener
    from minibroker.lab.replay.serving import serve_capture

    try:
        listening = parse_plaintext_listener(listener)
    except BadValueError as error:
        raise InvalidUsage(f"--serve {listener}: {error}") from None

    def print_ready(address: HostPort) -> None:
        ready = {"event": "ready", "bootstrap_servers": str(address)}
        emit(json_line(ready) if as_json else f"answering as recorded on {address}")

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            run: Callable[..., Any] = serve_capture
            nursery.start_soon(lambda: run(capture, listening, print_ready, speed=speed))
            await signals.__anext__()
            nursery.cancel_scope.cancel()


def _read(source: str) -> Capture:
    from minibroker.lab.replay.capture import InvalidCapture, read_capture

    try:
        with open(source, encoding="utf-8") as file:
            capture = read_capture(file)
    except InvalidCapture as error:
        raise InvalidUsage(f"{source}: {error}") from None
    except UnicodeDecodeError as error:
        raise InvalidUsage(f"{source} is not UTF-8: {error.reason}") from None
    except OSError as error:
        raise InvalidUsage(f"{source} cannot be read: {error.strerror}") from None
    if not capture.requests:
        raise InvalidUsage(f"{source}: there are no requests with frames")
    return capture


def _pace(speed: str) -> float | None:
    if speed == FASTEST:
        return None
    try:
        pace = float(speed)
    except ValueError:
        pace = 0.0
    if not 0 < pace < float("inf"):
        raise InvalidUsage(f"--speed {speed}: must be a positive number, or {FASTEST}")
    return pace


def _report(capture: Capture, report: ReplayReport) -> dict[str, Any]:
    from minibroker_protocol.errors import ErrorCode
    from minibroker_protocol.registry import ApiKey

    return {
        "sent": report.sent,
        "answered": report.answered,
        "unanswered": report.unanswered,
        "skipped": capture.skipped,
        "differing": [
            {
                "api": ApiKey(key).name,
                "recorded": ErrorCode(recorded).name,
                "now": ErrorCode(now).name,
                "responses": count,
            }
            for (key, recorded, now), count in sorted(report.differing.items())
        ],
        "seconds": round(report.seconds, 3),
    }


def _as_text(report: dict[str, Any]) -> str:
    counts = f"{report['answered']} answered, {report['unanswered']} not answered"
    lines = [f"sent {report['sent']} requests in {report['seconds']} s, {counts}"]
    lines += [f"skipped {count} {api}: not recorded" for api, count in report["skipped"].items()]
    for each in report["differing"]:
        errors = f"{each['now']} instead of {each['recorded']}"
        lines.append(f"{each['api']}: {errors} in {each['responses']} responses")
    return "\n".join(lines)

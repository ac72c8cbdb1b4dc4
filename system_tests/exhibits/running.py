"""A run of an exhibit: a broker, the page's commands, its program with one version, and verdicts.

Owns the broker of a run, what the program prints, the history made of that, and what is compared
with the page. It must never know a client. Invariant: a run uses what the page shows, and replaces
nothing but the addresses, so a reader who repeats the page sees the same.
"""

from __future__ import annotations

import base64
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.client.control import journal_pages
from minibroker.testing import MiniBroker, check
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import parse_batch_header
from system_tests.exhibits.packages import Runnable, runnable
from system_tests.exhibits.page import KINDS, Exhibit, Expectation, missing_line

PATIENCE_S: Final = 30
"""How long a program may take; afterwards it is killed, and has ended ``never``."""

_ADDRESS: Final = "localhost:9092"
"""The broker's address on the pages."""
_CONTROL: Final = "localhost:8080"
"""The address of its control API on the pages."""
_BATCH_FIELDS: Final = ("producer_id", "producer_epoch", "base_sequence", "record_count")


@dataclass(frozen=True, slots=True)
class Run:
    """What a run with one version showed, as lines."""

    output: list[str]
    """What the program printed, and at the end how it ended."""
    journal: list[str]
    judge: list[str]
    check: list[str]

    def lines(self, kind: str) -> list[str]:
        """Return the lines of a kind of expectation."""
        return list(getattr(self, kind))

    def found(self) -> list[str]:
        """Return what is wrong, in the words of a page's verdict."""
        found = []
        for kind, lines, word in (
            ("judge", self.judge, "broken: "),
            ("check", self.check, "invalid: "),
            ("program", self.output, "ended: "),
        ):
            last = lines[-1] if lines else ""
            if last.startswith(word):
                found += [f"{kind}: {name}" for name in last.removeprefix(word).split(", ")]
        return [each for each in found if each != "program: exit code 0"]

    def text(self) -> str:
        """Return all lines, for readers."""
        return "\n".join(line for kind in KINDS for line in (f"--- {kind}", *self.lines(kind)))


def problems(exhibit: Exhibit, version: str, done: Run) -> list[str]:
    """Return in what a run differs from its page."""
    different = [
        f"{expectation.kind} of {version} lacks: {line}"
        for expectation in exhibit.expected[version]
        if (line := missing_line(expectation, done.lines(expectation.kind))) is not None
    ]
    found = done.found()
    if exhibit.fixed is not None and _is_other_journal(exhibit.expected[exhibit.fixed], done):
        found.append("journal")
    is_defective = version == exhibit.defective
    wrong = [each for each in exhibit.verdict if (each in found) != is_defective]
    expected = "to be found" if is_defective else "not to be found"
    return different + [f"{version} is expected {expected} by: {each}" for each in wrong]


def _is_other_journal(expected: Sequence[Expectation], done: Run) -> bool:
    journals = (each for each in expected if each.kind == "journal")
    return any(missing_line(each, done.journal) is not None for each in journals)


def run_exhibit(exhibit: Exhibit, version: str) -> Run:
    """Run an exhibit with one version. Raises `ToolchainMissing`."""
    with tempfile.TemporaryDirectory(prefix="exhibit-") as folder:
        program = runnable(exhibit.package, version, exhibit.program, Path(folder))
        start, *commands = [shlex.split(line, comments=True) for line in exhibit.commands]
        with MiniBroker(settings=_settings_of(start)) as broker:
            judged: list[str] = []
            client_id = "*"
            output: list[str] = []
            for words in filter(None, commands):
                if words[0] != "minibroker":
                    output = _printed(program, _arguments(words, broker))
                elif words[1] == "judge":
                    judged = _command(broker, words[1:], may_fail=True)
                    client_id = words[words.index("--client-id") + 1]
                else:
                    _command(broker, words[1:])
            logs = _logs(broker)
            return Run(output, _journal_lines(broker, client_id), judged, checked(output, logs))


def _settings_of(start: Sequence[str]) -> dict[str, str]:
    """Return the settings of a command that starts a broker."""
    assert list(start[:2]) == ["minibroker", "start"], start
    names = start[2::2]
    assert set(names) <= {"--set"}, f"only --set can be repeated by a test: {names}"
    return dict(each.split("=", 1) for each in start[3::2])


def _command(broker: MiniBroker, words: list[str], may_fail: bool = False) -> list[str]:
    environment = {
        "MINIBROKER_CONTROL": broker.control_url,
        "MINIBROKER_BOOTSTRAP_SERVER": broker.bootstrap_servers,
    }
    result = CliRunner().invoke(app, words, env=environment)
    assert result.exit_code == 0 or may_fail, f"{words}: {result.output}"
    return str(result.stdout).splitlines()


def _arguments(words: Sequence[str], broker: MiniBroker) -> list[str]:
    """Return the arguments of a program: the page's addresses and what follows."""
    at = next(at for at, word in enumerate(words) if "localhost:" in word)
    control = broker.control_url.partition("://")[2]
    return [
        word.replace(_ADDRESS, broker.bootstrap_servers).replace(_CONTROL, control)
        for word in words[at:]
    ]


def _printed(program: Runnable, arguments: Sequence[str]) -> list[str]:
    process = subprocess.Popen(
        [*program.command, *arguments],
        cwd=program.folder,
        env={**os.environ, **program.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
        ending = f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        ending = "never"
    return [*output.splitlines(), f"ended: {ending}"]


def _logs(broker: MiniBroker) -> dict[str, list[tuple[int, str]]]:
    """Return offset and value of all records, by partition."""
    logs: dict[str, list[tuple[int, str]]] = {}
    for topic in broker.control.get("v1", "topics")["topics"]:
        if topic["name"].startswith("__"):
            continue
        for message in broker.messages(topic["name"]):
            key = f"{topic['name']}-{message.partition}"
            logs.setdefault(key, []).append((message.offset or 0, message.text))
    return logs


def checked(output: Sequence[str], logs: Mapping[str, list[tuple[int, str]]]) -> list[str]:
    """Return what ``minibroker check`` says of what a program printed.

    ``sent VALUE`` is an acknowledged record of the topic's only partition, ``polled OFFSET VALUE``
    one that a consumer got. If a program only sends, its records are read from the log; if it
    sends nothing, the records of the log were sent before.
    """
    words = [line.split() for line in output]
    sent = [each[1] for each in words if each[:1] == ["sent"]]
    polled = [(int(each[1]), each[2]) for each in words if each[:1] == ["polled"]]
    [(key, log)] = logs.items() or [("orders-0", [])]
    steps: list[dict[str, Any]] = [{"send": key, "value": value} for value in sent]
    if not sent:
        steps = [{"send": key, "value": value, "offset": offset} for offset, value in log]
    lines: list[dict[str, Any]] = [{"history": "minibroker", "version": 1, "final_polls": True}]
    for step in steps:
        lines.append(_operation("invoke", "send", {"send": key, "value": step["value"]}))
        lines.append(_operation("ok", "send", step))
    for offset, value in polled or (log if sent else []):
        lines.append(_operation("invoke", "poll", {"poll": {}}, process=1))
        lines.append(_operation("ok", "poll", {"poll": {key: [[offset, value]]}}, process=1))
    return str(check(lines)).splitlines()


def _operation(result: str, kind: str, step: Mapping[str, Any], process: int = 0) -> dict[str, Any]:
    return {"process": process, "type": result, "operation": kind, "steps": [step]}


def _journal_lines(broker: MiniBroker, client_id: str) -> list[str]:
    """Return the requests and responses of a client, a line each: what, API and its fields."""
    conditions = {"kind": "request,response", "client_id": client_id}
    lines = []
    for page in journal_pages(broker.control, 0, decode="true", **conditions):
        for entry in page["entries"]:
            fields = " ".join(_fields(entry["body"]))
            lines.append(f"{entry['kind']} {entry['api']} v{entry['version']} {fields}".strip())
    return lines


def _fields(body: object, name: str = "") -> Iterator[str]:
    """Yield ``name=value`` of the fields of a body, of all depths."""
    if isinstance(body, Mapping):
        for key, value in body.items():
            yield from _fields(value, key)
    elif isinstance(body, list):
        for value in body:
            yield from _fields(value, name)
    elif name == "records" and isinstance(body, str):
        header = parse_batch_header(base64.b64decode(body))._asdict() if body else {}
        yield from (f"{key}={header[key]}" for key in _BATCH_FIELDS if key in header)
    elif name == "error_code" and isinstance(body, int):
        yield f"error={ErrorCode.describe(body)}"
    elif body is not None and " " not in (text := str(body)):
        yield f"{name}={text}"

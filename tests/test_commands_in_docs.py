"""Commands on the pages of docs exist, take the options that they are given, and run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import click
import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.lab.control.operation import ApiOperation
from minibroker.lab.control.operations import OPERATIONS
from minibroker.lab.schema import InvalidJson, parse
from minibroker.testing import MiniBroker

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "minibroker/languages").glob("*/README.md")),
]
OPERATORS = frozenset(";|&()\n")
KEYWORDS = frozenset({"if", "then", "else", "do", "while", "until", "!", "{"})


class CurlCall(NamedTuple):
    """A request that a page sends to the control API."""

    method: str
    path: str
    query: dict[str, str]
    body: Any


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command in the shell blocks of a page, without redirections.

    The commands of a substitution in double quotes remain a part of their word.
    """
    for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        joined = re.sub(r"(^|\s)#.*$", r"\1", block.replace("\\\n", " "), flags=re.MULTILINE)
        lexer = shlex.shlex(joined, posix=True, punctuation_chars=";|&()<>\n")
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
        words: list[str] = []
        is_target = False
        for token in [*lexer, "\n"]:
            if set(token) <= {*OPERATORS, "<", ">"}:
                if token[0] in "<>":
                    is_target = True
                    if words and words[-1].isdigit():
                        words.pop()
                else:
                    yield from [words] if words else []
                    words, is_target = [], False
            elif is_target:
                is_target = False
            elif words or (token not in KEYWORDS and "=" not in token):
                words.append(token)


def of_minibroker(page: Path) -> list[list[str]]:
    """The arguments of minibroker's commands on a page."""
    return [words[1:] for words in commands(page.read_text()) if is_minibroker(words[0])]


def is_minibroker(word: str) -> bool:
    return Path(word).name == "minibroker"


def check_usage(arguments: list[str]) -> None:
    """Parse a command line without running it. Raises ``click.UsageError``."""
    context, command = click.Context(app, info_name="minibroker"), app
    found: click.Command = command
    while isinstance(found, click.Group):
        name, known, arguments = found.resolve_command(context, arguments)
        assert known is not None
        context, found = click.Context(known, info_name=name, parent=context), known
    values, _, _ = found.make_parser(context).parse_args(list(arguments))
    for parameter in found.params:
        value = values.get(parameter.name or "")
        is_given = isinstance(value, str | tuple) and len(value) > 0
        if isinstance(parameter, click.Argument) and parameter.required and not is_given:
            raise click.MissingParameter(ctx=context, param=parameter)
        has_files = isinstance(parameter.type, click.Path | click.File)
        if isinstance(value, str | tuple | list) and not has_files and "$" not in str(value):
            parameter.type_cast_value(context, value)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if of_minibroker(page)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_commands_of_page_take_their_options(page: Path) -> None:
    for arguments in of_minibroker(page):
        try:
            check_usage(arguments)
        except click.UsageError as error:
            pytest.fail(f"minibroker {shlex.join(arguments)}: {error.format_message()}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("minibroker topics make x", "No such command 'make'"),
        ("minibroker start --prot 3", "No such option"),
        ("echo x | minibroker produce", "Missing argument"),
        ("until minibroker security certificate rotten 2> /dev/null; do :; done", "rotten"),
    ],
)
def test_wrong_command_on_a_page_is_found(line: str, message: str) -> None:
    words = [each for each in commands(f"```sh\n{line}\n```\n") if is_minibroker(each[0])]
    assert len(words) == 1
    with pytest.raises(click.UsageError) as raised:
        check_usage(words[0][1:])
    assert message in raised.value.format_message()


# Runs ---------------------------------------------------------------------------------------------

AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
RUN = {
    "README.md": {"configs", "quotas list"},
    "docs/getting-started.md": {"topics", "produce", "consume", "clock", "configs"},
    "docs/guides/clients.md": {"clock"},
    "docs/guides/command-line.md": {
        *("consume", "groups", "topics", "request", "clock", "acls", "settings", "completion"),
    },
    "docs/guides/connection-limits.md": {"connections"},
    "docs/guides/container.md": {"configs"},
    "docs/guides/faults.md": {"faults add", "faults list", "faults remove", "faults fields"},
    "docs/guides/proxy.md": {"faults add error", "faults remove"},
    "docs/guides/quotas.md": {"configs", "quotas list"},
    "docs/guides/security.md": {"security"},
}
"""Commands that need no second terminal; others are only parsed here."""
CATS = "tom:black\ntim:white\nkit:red\n"
QUOTAS = "--alter --entity-type clients --entity-name app --add-config request_percentage=50\n"


def runs(arguments: list[str], prefixes: set[str]) -> bool:
    return any(arguments[: len(prefix.split())] == prefix.split() for prefix in prefixes)


@pytest.mark.parametrize("page", RUN)
def test_commands_of_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands of a page in their order, as a user with a topic and a group does."""
    monkeypatch.chdir(tmp_path)
    Path("quotas.txt").write_text(QUOTAS)
    secure: dict[str, Any] = {"tls": "mutual", "sasl": "oauth"} if "security" in page else {}
    with MiniBroker(settings=AUTHORIZED, **secure) as broker:
        monkeypatch.setenv("MINIBROKER_CONTROL", broker.control_url)
        monkeypatch.setenv("MINIBROKER_BOOTSTRAP_SERVER", broker.bootstrap_servers)
        if page.endswith("command-line.md"):
            broker.produce(broker.create_topic("cats", 3), ["tom"] * 10)
        count = 0
        for arguments in of_minibroker(ROOT / page):
            if not runs(arguments, RUN[page]):
                continue
            limit = ["--timeout", "0.1"] if arguments[0] == "consume" else []
            result = CliRunner().invoke(app, [*arguments, *limit], input=CATS)
            assert result.exit_code == 0, f"{shlex.join(arguments)}: {result.output}"
            count += 1
    assert count >= len(RUN[page])


# Requests of the control API ----------------------------------------------------------------------


def curl_calls(page: Path) -> list[CurlCall]:
    """The requests of curl that name the control API by a variable or as localhost:8080."""
    found = []
    for words in commands(page.read_text()):
        target = next((word for word in words if "/v1/" in word), None)
        if words[0] != "curl" or target is None:
            continue
        body = words[words.index("-d") + 1] if "-d" in words else None
        method = words[words.index("-X") + 1] if "-X" in words else "POST" if body else "GET"
        parts = urlsplit(target[target.index("/v1/") :])
        content = None if body is None else json.loads(body)
        found.append(CurlCall(method, parts.path, dict(parse_qsl(parts.query)), content))
    return found


def check_call(call: CurlCall) -> None:
    """Find the operation of a request and check its query and body. Raises ``InvalidJson``."""
    [operation] = [
        each for each in OPERATIONS if each.method == call.method and matches(each, call.path)
    ]
    if operation.query is not None:
        parse(operation.query, call.query)
    if operation.body is not None and call.body is not None:
        parse(operation.body, call.body)


def matches(operation: ApiOperation, path: str) -> bool:
    there, here = operation.path.split("/"), path.split("/")
    return len(there) == len(here) and all(
        one == other or one.startswith("{") for one, other in zip(there, here, strict=True)
    )


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if curl_calls(page)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_requests_of_page_suit_the_control_api(page: Path) -> None:
    for call in curl_calls(page):
        check_call(call)


def test_wrong_request_on_a_page_is_found() -> None:
    with pytest.raises(InvalidJson):
        check_call(CurlCall("GET", "/v1/groups/billing", {"stat": "Stable"}, None))
    with pytest.raises(InvalidJson):
        check_call(CurlCall("POST", "/v1/journal", {}, {"enable": True}))

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner, Result

from minibroker.cli import judge as command
from minibroker.cli.app import app
from minibroker.cli.judge import write_page
from minibroker.cli.output import CliError, ExitCode, InvalidUsage
from minibroker.lab.verdicts.all_rules import RULES
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from minibroker_protocol.registry import ApiKey
from tests.lab.verdicts.test_saved_journal import saved
from tests.lab.verdicts.written import CLIENT, WrittenJournal


def good_journal() -> WrittenJournal:
    journal = WrittenJournal()
    journal.open("1")
    journal.ask_versions("1", {ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (0, 12)})
    journal.ask_metadata("1")
    return journal


def bad_journal() -> WrittenJournal:
    journal = good_journal()
    journal.ask_versions("1", {ApiKey.API_VERSIONS: (0, 4)})
    journal.ask_metadata("1")
    return journal


def text(journal: WrittenJournal) -> str:
    return "".join(json.dumps(saved(entry)) + "\n" for entry in journal.entries)


def judge(*words: str, stdin: str = "") -> Result:
    result = CliRunner().invoke(app, ["judge", *words], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_well_behaved_client_exits_with_0(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_text(text(good_journal()))
    result = judge("--client-id", CLIENT, "--journal", str(file))
    assert result.exit_code == ExitCode.OK
    assert result.stdout.endswith("\nno finding\n")


def test_broken_rule_exits_with_1() -> None:
    result = judge("--client-id", CLIENT, "--journal", "-", stdin=text(bad_journal()))
    assert result.exit_code == ExitCode.REFUSED
    assert result.stdout.endswith("\nbroken: advertised-versions\n")


def test_client_is_judged_in_a_namespace() -> None:
    """The other connection has another client with the same id."""
    journal = bad_journal()
    for name, connection in (("a.orders", "2"), ("b.orders", "3")):
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        journal.ask(connection, request, 9, MetadataResponse())
    words = ("--client-id", CLIENT, "--journal", "-", "--namespace", "a")
    result = judge(*words, stdin=text(journal))
    assert result.stdout.startswith("client id app: 1 requests on 1 connections\n")
    assert result.exit_code == ExitCode.OK


def test_broken_rule_says_what_an_author_can_do() -> None:
    result = judge("--client-id", CLIENT, "--journal", "-", stdin=text(bad_journal()))
    assert "    What an author can do: Use the highest version that both" in result.stdout


def test_allowed_rule_exits_with_0() -> None:
    words = ("--client-id", CLIENT, "--journal", "-", "--allow", "advertised-versions")
    assert judge(*words, stdin=text(bad_journal())).exit_code == ExitCode.OK


def test_json_is_one_line_and_a_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "report.md"
    words = ("--client-id", CLIENT, "--journal", "-", "--json", "--markdown", str(page))
    result = judge(*words, stdin=text(bad_journal()))
    [line] = result.stdout.splitlines()
    assert json.loads(line)["behaves_well"] is False
    assert page.read_text().startswith("# Verdicts on app\n")


def test_rules_are_listed() -> None:
    lines = judge("--rules").stdout.splitlines()
    assert len(lines) == 2 * len(RULES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--client-id is missing"),
        (["--client-id", "x", "--journal", "-"], "no request of the client id 'x'.*: app"),
        (["--client-id", CLIENT, "--journal", "-", "--allow", "x"], "there is no rule 'x'"),
        (["--client-id", CLIENT, "--journal", "/nowhere"], "/nowhere cannot be read"),
    ],
)
def test_wrong_usage_is_explained(words: list[str], message: str) -> None:
    with pytest.raises(InvalidUsage, match=message):
        judge(*words, stdin=text(good_journal()))


def test_file_that_is_no_journal_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsage, match="standard input: line 1: kind must be one of"):
        judge("--client-id", CLIENT, "--journal", "-", stdin="{}\n")
    file = tmp_path / "bytes"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidUsage, match="is not UTF-8"):
        judge("--client-id", CLIENT, "--journal", str(file))


def test_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="cannot be written"):
        write_page(tmp_path / "none" / "report.md", "")


class FakeControl:
    """A control API that has only a journal."""

    url = "http://fake"

    def __init__(self) -> None:
        self.entries = [saved(entry) for entry in bad_journal().entries]
        self.pages = 0
        self.is_closed = False

    def get(self, *path: str, query: dict[str, Any]) -> dict[str, Any]:
        assert path == ("v1", "journal")
        assert query["frames"] == "true"
        later = [each for each in self.entries if each["sequence"] > query["after"]]
        self.pages += 1
        limit = query["limit"]
        return {"entries": later[:limit], "has_more": len(later) > limit, "pending": 3}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> FakeControl:
    control = FakeControl()
    monkeypatch.setattr("minibroker.cli.control.find_control", lambda *_: control)
    return control


def test_journal_of_a_broker_is_read_in_pages(
    control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PAGE_ENTRIES", 2)
    result = judge("--client-id", CLIENT)
    assert result.exit_code == ExitCode.REFUSED
    assert "4 requests on 1 connections; 3 entries of the journal are lost" in result.stdout
    assert control.pages == 5
    assert control.is_closed


def test_answer_that_is_no_journal_is_an_error(control: FakeControl) -> None:
    control.entries = [{"sequence": 1}]
    with pytest.raises(CliError, match="http://fake does not answer with a journal: kind must be"):
        judge("--client-id", CLIENT)
    assert control.is_closed

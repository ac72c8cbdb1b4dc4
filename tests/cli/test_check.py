from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minibroker.cli.app import app
from minibroker.cli.check import read_lines
from minibroker.cli.output import ExitCode, InvalidUsage
from minibroker.lab.checker.history import LINE_CHARS_MAX
from tests.lab.checker.written import Line, header, poll, send

A = "orders-0"
CLEAN = [header(), *send(0, (A, 1, 0)), *poll(1, {A: [(0, 1)]})]
LOST = [header(), *send(0, (A, 1, 0), (A, 2, 1)), *poll(1, {A: [(1, 2)]})]


def text(lines: list[Line]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def check(*words: str, stdin: str = "") -> Result:
    result = CliRunner().invoke(app, ["check", *words], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_clean_history_exits_with_0(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text(text(CLEAN))
    result = check(str(file))
    assert result.exit_code == ExitCode.OK
    assert result.stdout.endswith("\nvalid\n")


def test_anomaly_exits_with_1() -> None:
    result = check("-", stdin=text(LOST))
    assert result.exit_code == ExitCode.REFUSED
    assert "lost-write: 1 case" in result.stdout


def test_json_is_one_line() -> None:
    result = check("-", "--json", stdin=text(LOST))
    assert result.exit_code == ExitCode.REFUSED
    [line] = result.stdout.splitlines()
    assert [row["name"] for row in json.loads(line)["anomalies"]] == ["lost-write"]


def test_wrong_line_is_reported_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text(text(CLEAN) + '{"process": 0}\n')
    with pytest.raises(InvalidUsage, match=r"history\.jsonl: line 6: \"operation\" is missing"):
        check(str(file))
    assert InvalidUsage.exit_code == ExitCode.USAGE


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsage, match="cannot be read: No such file"):
        check(str(tmp_path / "none.jsonl"))
    file = tmp_path / "bytes"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidUsage, match="is not UTF-8"):
        check(str(file))


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_key_that_no_encoding_has_is_escaped(options: list[str]) -> None:
    lines = [header(), *poll(1, {"\ud800-0": [(0, 1)]})]
    result = check("-", *options, stdin=text(lines))
    assert result.exit_code == ExitCode.REFUSED
    assert "\\ud800-0" in result.stdout


def test_long_line_is_not_read_as_a_whole() -> None:
    lines = read_lines(io.StringIO("x" * (LINE_CHARS_MAX + 10)))
    assert len(next(lines)) == LINE_CHARS_MAX + 1

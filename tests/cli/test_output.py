from __future__ import annotations

import pytest

from minibroker.cli.output import emit, json_line, note, table, text_or_none


def test_number_columns_are_aligned_to_the_right() -> None:
    assert table(("TOPIC", "PARTITIONS"), [("cats", 3), ("a-long-name", 12)]) == (
        "TOPIC        PARTITIONS\ncats                  3\na-long-name          12"
    )


def test_mixed_columns_are_aligned_to_the_left() -> None:
    assert table(("LAG",), [(3,), ("-",)]) == "LAG\n3\n-"


def test_table_without_rows_has_headings() -> None:
    assert table(("A", "B"), []) == "A  B"


def test_bytes_that_are_not_text_are_escaped() -> None:
    assert text_or_none(b"caf\xc3\xa9") == "café"
    assert text_or_none(b"\xff\x00") == "\\xff\x00"
    assert text_or_none(None) is None


def test_json_line_has_no_line_break() -> None:
    assert json_line({"a": "x\ny"}) == '{"a":"x\\ny"}'


def test_emit_uses_stdout_and_note_uses_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    emit("row")
    note("remark")
    assert capsys.readouterr() == ("row\n", "remark\n")

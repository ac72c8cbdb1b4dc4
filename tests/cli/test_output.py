from __future__ import annotations

import pytest

from minibroker.cli.output import (
    BadConfig,
    CliError,
    InvalidUsage,
    TooFewMessages,
    Unreachable,
    emit,
    error_message,
    exit_code,
    json_line,
    note,
    table,
    text_or_none,
)
from minibroker.client.errors import (
    ApiNotSupported,
    BrokerError,
    BrokerUnreachable,
    ConnectionDropped,
    InvalidArgument,
    InvalidClientConfig,
    NotConnected,
    Remedy,
)
from minibroker_protocol.errors import ErrorCode


def test_error_message_of_missing_topic_names_the_command_that_helps() -> None:
    message = error_message(BrokerError("topic cats", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert message.startswith("topic cats: UNKNOWN_TOPIC_OR_PARTITION (")
    assert "minibroker topics create" in message


def test_error_message_of_existing_topic_names_if_not_exists() -> None:
    message = error_message(BrokerError("topic cats", ErrorCode.TOPIC_ALREADY_EXISTS))
    assert "--if-not-exists" in message


def test_error_message_of_offset_out_of_range_names_topics_describe() -> None:
    message = error_message(BrokerError("cats-0", ErrorCode.OFFSET_OUT_OF_RANGE))
    assert "minibroker topics describe" in message


def test_error_message_without_hint_is_the_error() -> None:
    error = BrokerError("topic cats", ErrorCode.INVALID_PARTITIONS, "must be larger than 0")
    assert error_message(error) == "topic cats: INVALID_PARTITIONS: must be larger than 0"


def test_exit_codes_of_cli_errors_are_stable() -> None:
    errors = (CliError(), InvalidUsage(), Unreachable(), BadConfig(), TooFewMessages())
    assert [int(exit_code(error)) for error in errors] == [1, 2, 3, 4, 5]


def test_unreachable_broker_message_names_the_option_that_helps() -> None:
    closed = BrokerUnreachable("a:1 closed the connection", Remedy.CONFIGURE_SECURITY)
    assert error_message(closed).endswith("with --command-config FILE")
    assert "--bootstrap-server" in error_message(BrokerUnreachable("", Remedy.START_BROKER))
    elsewhere = error_message(BrokerUnreachable("", Remedy.CORRECT_ADVERTISED_ADDRESS))
    assert "advertised.listeners" in elsewhere
    assert "minibroker start" not in elsewhere
    assert error_message(BrokerUnreachable("a:1: no such host")) == "a:1: no such host"


def test_exit_codes_of_client_errors_are_stable() -> None:
    errors = (
        BrokerError("topic cats", ErrorCode.INVALID_PARTITIONS),
        ApiNotSupported(),
        InvalidArgument(),
        BrokerUnreachable(),
        NotConnected(),
        ConnectionDropped(),
        InvalidClientConfig(),
    )
    assert [int(exit_code(error)) for error in errors] == [1, 1, 2, 3, 3, 3, 4]


def test_number_columns_are_aligned_to_the_right() -> None:
    assert table(("TOPIC", "PARTITIONS"), [("cats", 3), ("a-long-name", 12)]) == (
        "TOPIC        PARTITIONS\ncats                  3\na-long-name          12"
    )


def test_mixed_columns_are_aligned_to_the_left() -> None:
    assert table(("LAG",), [(3,), ("-",)]) == "LAG\n3\n-"


def test_name_in_a_table_has_no_line_breaks_and_escape_sequences() -> None:
    rows = [("a\nb\x1b[2J", 1), ("ü €", 2)]
    assert table(("GROUP", "LAG"), rows).splitlines() == [
        "GROUP        LAG",
        "a\\nb\\x1b[2J    1",
        "ü €            2",
    ]


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

"""How single values read."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker_protocol.dissect.values import describe, moment, preview


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("error_code", 0, "0 NONE"),
        ("error_code", 3, "3 UNKNOWN_TOPIC_OR_PARTITION"),
        ("error_code", 9999, "9999 error 9999"),
        ("api_key", 3, "3 METADATA"),
        ("request_api_key", 999, "999 unknown"),
        ("acks", -1, "-1 all"),
        ("isolation_level", 1, "1 read committed"),
        ("key_type", 0, "0 group"),
        ("resource_type", 2, "2 topic"),
        ("timestamp", -2, "-2 earliest"),
        ("timestamp", -99, "-99"),
        ("base_timestamp", 1_700_000_000_000, "1700000000000 2023-11-14 22:13:20.000Z"),
        ("partition_index", 7, "7"),
        ("is_internal", True, "true"),
        ("is_internal", False, "false"),
        ("rack", None, "null"),
        ("name", "orders", "'orders'"),
        ("name", "x" * 100, f"'{'x' * 60}'… (100 characters)"),
        ("topic_id", bytes(16), "AAAAAAAAAAAAAAAAAAAAAA"),
        ("auth_bytes", b"", "empty"),
        ("auth_bytes", b"\0user", "5 bytes"),
        ("auth_bytes", b"\xff", "1 bytes"),
        ("value", 1.5, "1.5"),
    ],
)
def test_values_are_described_by_field_name(name: str, value: Any, text: str) -> None:
    assert describe(name, value) == text


def test_printable_bytes_are_previewed_as_text() -> None:
    assert preview(b"hello") == "'hello'"
    assert preview(b"x" * 61) == f"'{'x' * 60}'… (61 bytes)"


@pytest.mark.parametrize("value", [-1, 0, 2**62])
def test_invalid_timestamp_has_no_date(value: int) -> None:
    assert moment(value) == ""

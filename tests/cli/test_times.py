from __future__ import annotations

import pytest

from minibroker.cli.output import InvalidUsage
from minibroker.cli.times import parse_duration_ms, read_duration_ms, read_time_ms


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("PT1H30M", 5_400_000),
        ("P1DT2S", 86_402_000),
        ("P", None),
        ("PT", None),
        ("10", None),
        ("10x", None),
        ("-10s", None),
        ("", None),
    ],
)
def test_duration_is_parsed_in_both_syntaxes(text: str, milliseconds: int | None) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:01.5+01:00", 1500),
        ("1970-01-02", 86_400_000),
        ("1764321000123", 1764321000123),
    ],
)
def test_time_without_zone_is_in_utc(text: str, milliseconds: int) -> None:
    assert read_time_ms("--since", text) == milliseconds


def test_invalid_time_and_duration_name_the_option() -> None:
    with pytest.raises(InvalidUsage, match=r"--since yesterday: must be a time"):
        read_time_ms("--since", "yesterday")
    with pytest.raises(InvalidUsage, match=r"--by-duration 5: must be a duration"):
        read_duration_ms("--by-duration", "5")

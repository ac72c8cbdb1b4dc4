"""Version ranges in Kafka's notation."""

from __future__ import annotations

import pytest

from minibroker_protocol.versions import HIGHEST, NONE, Versions


@pytest.mark.parametrize(
    ("text", "versions", "shown"),
    [
        ("3+", (3, HIGHEST), "3+"),
        ("0-12", (0, 12), "0-12"),
        ("4", (4, 4), "4"),
        ("4-4", (4, 4), "4"),
        ("", NONE, "none"),
        ("none", NONE, "none"),
    ],
)
def test_version_range_notations_are_parsed(
    text: str, versions: tuple[int, int], shown: str
) -> None:
    assert Versions.parse(text) == versions
    assert str(Versions.parse(text)) == shown


def test_version_range_includes_both_ends() -> None:
    assert [v for v in range(8) if Versions.parse("3-5").has(v)] == [3, 4, 5]
    assert not any(NONE.has(v) for v in range(3))


@pytest.mark.parametrize("text", ["5-3", "x", "3-", "-1+"])
def test_invalid_version_range_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"backwards|no version range"):
        Versions.parse(text)

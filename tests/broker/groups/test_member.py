"""A member's votes and session, and its round trip through the log."""

from __future__ import annotations

import pytest

from minibroker.broker.groups.member import ClassicMember, restore_member


def member(**other: object) -> ClassicMember:
    values: dict[str, object] = {
        "member_id": "m",
        "group_instance_id": None,
        "client_id": "c",
        "client_host": "/h",
        "session_timeout_ms": 1,
        "rebalance_timeout_ms": 2,
        "protocols": (("sticky", b"s"), ("range", b"r")),
    }
    return ClassicMember(**(values | other))  # type: ignore[arg-type]


def test_vote_returns_most_preferred_candidate() -> None:
    assert member().vote({"range", "sticky"}) == "sticky"
    assert member().vote({"range", "other"}) == "range"


def test_metadata_of_protocol_is_returned() -> None:
    assert member().metadata("range") == b"r"
    with pytest.raises(KeyError):
        member().metadata("other")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, True),
        ({"join_waiter": 1}, False),
        ({"sync_waiter": 1}, False),
        ({"join_waiter": 1, "is_new": True}, True),
    ],
)
def test_member_may_expire_only_if_it_can_send_heartbeats(
    state: dict[str, object], expected: bool
) -> None:
    assert member(**state).may_expire is expected


def test_image_contains_only_selected_protocol() -> None:
    image = member(group_instance_id="i").image("range", b"mine")
    again = restore_member(image, "range")
    assert again.protocols == (("range", b"r"),)
    assert again.image("range", b"mine") == image
    assert again.is_static

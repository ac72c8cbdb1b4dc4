"""A member votes, waits, and comes back from the log as it went in."""

from __future__ import annotations

import pytest

from minibroker.coordinator.member import Member, restored


def member(**other: object) -> Member:
    values: dict[str, object] = {
        "member_id": "m",
        "group_instance_id": None,
        "client_id": "c",
        "client_host": "/h",
        "session_timeout_ms": 1,
        "rebalance_timeout_ms": 2,
        "protocols": (("sticky", b"s"), ("range", b"r")),
    }
    return Member(**(values | other))  # type: ignore[arg-type]


def test_it_votes_for_the_candidate_it_likes_best() -> None:
    assert member().vote({"range", "sticky"}) == "sticky"
    assert member().vote({"range", "other"}) == "range"


def test_it_tells_what_it_said_along_with_a_protocol() -> None:
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
def test_silence_counts_only_against_who_could_speak(
    state: dict[str, object], expected: bool
) -> None:
    assert member(**state).may_expire is expected


def test_the_log_keeps_only_the_chosen_protocol() -> None:
    image = member(group_instance_id="i").image("range", b"mine")
    again = restored(image, "range")
    assert again.protocols == (("range", b"r"),)
    assert again.image("range", b"mine") == image
    assert again.is_static

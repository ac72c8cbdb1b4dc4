"""Acknowledgements: completed updates with new, dead and slow subscribers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.metadata.image import Update
from minibroker.broker.metadata.publisher import Publisher


def update(number: int) -> Update:
    return Update(1, number, ())


def test_update_completes_when_every_subscriber_acknowledged_it() -> None:
    publisher = Publisher()
    publisher.join("a")
    publisher.join("b")
    assert publisher.publish(update(1)) == ("a", "b")
    publisher.acknowledge("a", 1)
    assert publisher.complete == 0
    assert publisher.behind == {"a": 0, "b": 1}
    publisher.acknowledge("b", 1)
    assert publisher.complete == 1


def test_update_without_subscribers_completes_immediately() -> None:
    publisher = Publisher(5)
    assert publisher.publish(update(6)) == ()
    assert publisher.complete == publisher.newest == 6


def test_departed_subscriber_does_not_block_completion() -> None:
    publisher = Publisher()
    publisher.join("a")
    publisher.join("b")
    publisher.publish(update(1))
    publisher.acknowledge("a", 1)
    publisher.leave("b")
    assert publisher.complete == 1
    publisher.acknowledge("b", 1)
    publisher.leave("b")
    assert publisher.behind == {"a": 0}


def test_joining_subscriber_is_not_behind() -> None:
    publisher = Publisher()
    publisher.join("a")
    publisher.publish(update(1))
    publisher.join("b")
    assert publisher.behind == {"a": 1, "b": 0}
    publisher.join("a")
    assert publisher.complete == 1


def test_older_acknowledgement_is_ignored() -> None:
    publisher = Publisher()
    publisher.join("a")
    publisher.publish(update(1))
    publisher.publish(update(2))
    publisher.acknowledge("a", 2)
    publisher.acknowledge("a", 1)
    assert publisher.complete == 2


def test_updates_are_acknowledged_in_order() -> None:
    publisher = Publisher()
    publisher.join("a")
    with pytest.raises(ValueError, match="update 2 cannot follow update 0"):
        publisher.publish(update(2))
    with pytest.raises(ValueError, match="a acknowledged 1, the newest is 0"):
        publisher.acknowledge("a", 1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "publish", "acknowledge"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 20),
    ),
    max_size=60,
)


@given(STEPS)
def test_complete_number_is_monotonic_lower_bound(steps: list[tuple[str, str, int]]) -> None:
    publisher = Publisher()
    complete = 0
    for step, name, number in steps:
        if step == "join":
            publisher.join(name)
        elif step == "leave":
            publisher.leave(name)
        elif step == "publish":
            publisher.publish(update(publisher.newest + 1))
        else:
            publisher.acknowledge(name, min(number, publisher.newest))
        assert complete <= publisher.complete <= publisher.newest
        complete = publisher.complete
        assert all(publisher.newest - lag >= complete for lag in publisher.behind.values())

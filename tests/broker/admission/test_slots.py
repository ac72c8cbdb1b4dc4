"""Round robin over processors with a free slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.admission.slots import SLOTS, Slots


def joined(processors: int, slots: int = SLOTS) -> Slots:
    made = Slots(processors, slots)
    for processor in range(processors):
        made.joined(processor)
    return made


def test_processor_queue_has_20_slots_as_in_kafka() -> None:
    one = joined(1)
    assert [one.take() for _ in range(21)] == [0] * 20 + [None]


def test_round_robin_skips_full_and_absent_processors() -> None:
    slots = joined(3, 2)
    assert [slots.take() for _ in range(3)] == [0, 1, 2]
    slots.left(1)
    assert [slots.take() for _ in range(3)] == [0, 2, None]
    slots.freed(2)
    assert slots.take() == 2
    slots.joined(1)
    assert [slots.take() for _ in range(3)] == [1, 1, None]


def test_no_processors_means_no_slots() -> None:
    assert Slots(2).take() is None


def test_turn_is_lost_while_full() -> None:
    slots = joined(2, 1)
    assert [slots.take(), slots.take()] == [0, 1]
    slots.freed(1)
    assert slots.take() == 1
    slots.freed(0)
    slots.freed(1)
    assert slots.take() == 0


def test_with_one_slot_each_waits_for_the_one_before() -> None:
    slots = joined(1, 1)
    assert slots.take() == 0
    for _ in range(4):
        assert slots.take() is None
        slots.freed(0)
        assert slots.take() == 0


def test_several_are_freed_at_a_time_but_never_more_than_are_in_use() -> None:
    slots = joined(1, 3)
    assert [slots.take() for _ in range(4)] == [0, 0, 0, None]
    slots.freed(0, 2)
    with pytest.raises(ValueError, match="was not in use"):
        slots.freed(0, 2)
    assert [slots.take() for _ in range(3)] == [0, 0, None]


def test_use_is_shown() -> None:
    slots = joined(1, 5)
    assert (slots.used(0), slots.peak(0)) == (0, 0)
    for _ in range(3):
        slots.take()
    slots.freed(0)
    assert (slots.used(0), slots.peak(0)) == (2, 3)
    slots.left(0)
    assert (slots.used(0), slots.peak(0)) == (0, 3)


@pytest.mark.parametrize("there", [True, False])
def test_freeing_untaken_slot_is_an_error(there: bool) -> None:
    slots = joined(1) if there else Slots(1)
    with pytest.raises(ValueError, match="processor 0 freed a slot"):
        slots.freed(0)


@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(0, 20), max_size=60))
def test_no_processor_ever_holds_more_than_its_slots(
    processors: int, count: int, steps: list[int]
) -> None:
    slots = joined(processors, count)
    held = [0] * processors
    for step in steps:
        if step >= processors:
            taken = slots.take()
            assert (taken is None) == all(used == count for used in held)
            if taken is not None:
                held[taken] += 1
        elif held[step]:
            slots.freed(step)
            held[step] -= 1
        assert [slots.used(processor) for processor in range(processors)] == held
        assert max(held) <= count

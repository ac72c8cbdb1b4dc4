"""The table has one offset per partition, counts them, and finds the expired ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.groups.offsets import CommittedOffset, OffsetTable

KEYS = st.tuples(st.sampled_from("ab"), st.integers(0, 2))


def committed(offset: int, commit_ms: int = 0, expire_ms: int | None = None) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", commit_ms, expire_ms)


@given(st.lists(st.tuples(st.booleans(), KEYS, st.integers(0, 9))))
def test_offset_table_equals_dictionary(steps: list[tuple[bool, tuple[str, int], int]]) -> None:
    table, model = OffsetTable(), dict[tuple[str, int], CommittedOffset]()
    for put, (topic, partition), offset in steps:
        if put:
            table.put(topic, partition, committed(offset))
            model[topic, partition] = committed(offset)
        else:
            known = model.pop((topic, partition), None) is not None
            assert table.remove(topic, partition) is known
        assert {(each, number): value for each, number, value in table} == model
        assert len(table) == len(model)
        assert set(table.topics()) == {each for each, _ in model}


def test_get_returns_last_offset_put() -> None:
    table = OffsetTable()
    table.put("t", 0, committed(1))
    table.put("t", 0, committed(2))
    assert table.get("t", 0) == committed(2)
    assert table.get("t", 1) is None
    assert table.partitions("t") == {0: committed(2)}
    assert table.partitions("u") == {}


def test_offset_age_counts_from_commit_or_empty_group() -> None:
    table = OffsetTable()
    table.put("old", 0, committed(1, commit_ms=100))
    table.put("new", 0, committed(1, commit_ms=150))
    table.put("busy", 0, committed(1, commit_ms=0))
    when = {"wall_ms": 200, "retention_ms": 100, "consumed": {"busy"}}
    assert table.expired(age_from_ms=None, **when) == [("old", 0)]  # type: ignore[arg-type]
    assert table.expired(age_from_ms=101, **when) == []  # type: ignore[arg-type]
    assert table.expired(age_from_ms=100, **when) == [("old", 0), ("new", 0)]  # type: ignore[arg-type]


def test_clients_expiry_time_overrides_retention() -> None:
    table = OffsetTable()
    table.put("t", 0, committed(1, commit_ms=0, expire_ms=500))
    for wall_ms, expected in ((499, []), (500, [("t", 0)])):
        due = table.expired(wall_ms=wall_ms, retention_ms=10, age_from_ms=0, consumed=())
        assert due == expected

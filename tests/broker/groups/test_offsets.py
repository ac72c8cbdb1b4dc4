"""The table has one offset per partition, counts them, and finds the expired ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.groups.offsets import CommittedOffset, OffsetTable, PendingOffsets

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


KEY = ("g", "t", 0)


def offset(number: int) -> CommittedOffset:
    return CommittedOffset(number, -1, "", 1)


def test_committed_transaction_returns_its_offsets_once() -> None:
    pending = PendingOffsets()
    pending.add(5, KEY, offset(1))
    pending.add(5, KEY, offset(2))
    pending.add(5, ("h", "t", 0), offset(3))
    assert sorted(pending.groups()) == ["g", "h"]
    assert list(pending.of_group("g")) == [("t", 0)]
    assert (pending.count("g"), pending.is_pending(KEY)) == (1, True)
    assert sorted(pending.commit(5)) == [(KEY, offset(2)), (("h", "t", 0), offset(3))]
    assert not pending
    assert pending.commit(5) == []
    assert (pending.count("g"), pending.is_pending(KEY)) == (0, False)


def test_aborted_transaction_leaves_nothing() -> None:
    pending = PendingOffsets()
    pending.add(5, KEY, offset(1))
    pending.abort(5)
    pending.abort(6)
    assert not pending
    assert not pending.has_group("g")
    assert list(pending.of_group("g")) == []


def test_discarded_offset_is_removed_from_all_transactions() -> None:
    pending = PendingOffsets()
    for producer_id in (5, 6):
        pending.add(producer_id, KEY, offset(producer_id))
        pending.add(producer_id, ("g", "t", 1), offset(1))
    pending.discard(KEY)
    assert pending.commit(5) == [(("g", "t", 1), offset(1))]
    assert not pending.is_pending(KEY)


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "commit", "abort", "plain"]), st.integers(1, 3)), max_size=20
)


@given(STEPS)
def test_offset_in_force_is_the_latest_written_of_those_committed(
    steps: list[tuple[str, int]],
) -> None:
    pending = PendingOffsets()
    open_commits: dict[int, int] = {}
    in_force, model = 0, 0
    for number, (step, producer_id) in enumerate(steps, start=1):
        if step == "add":
            pending.add(producer_id, KEY, offset(number))
            open_commits[producer_id] = number
        elif step == "plain":
            pending.committed(KEY)
            in_force = model = number
        elif step == "abort":
            pending.abort(producer_id)
            open_commits.pop(producer_id, None)
        else:
            for _, committed in pending.commit(producer_id):
                in_force = committed.offset
            model = max(model, open_commits.pop(producer_id, 0))
        assert in_force == model
        assert bool(pending) == bool(open_commits) == pending.is_pending(KEY)

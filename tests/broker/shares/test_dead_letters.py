"""What is written to a dead-letter queue, in which batches, and how often it is tried."""

from __future__ import annotations

import pytest

from minibroker.broker.shares.dead_letters import (
    Attempts,
    CopiedRecords,
    LetterSource,
    build_letters,
    copied_records,
    without,
)
from minibroker.broker.shares.share_partition import DeadLetters
from minibroker_protocol.compression import Compression
from minibroker_protocol.records import Record, build_batch, iter_records

SOURCE = LetterSource("g", "t", 3)


def letters(first: int, last: int) -> DeadLetters:
    return DeadLetters(first, last, 2, is_rejected=True)


def batch(base: int, *sizes: int, **options: bool | Compression) -> bytes:
    records = [Record(0, 1, None, b"v" * size) for size in sizes]
    return build_batch(records, base_offset=base, **options)  # type: ignore[arg-type]


def test_write_is_tried_five_times_with_longer_pauses() -> None:
    attempts = Attempts(lambda: 0.5)
    assert [attempts.failed(10.0) for _ in range(5)] == [12.0, 14.0, 18.0, 26.0, None]


def test_success_starts_the_attempts_again() -> None:
    attempts = Attempts(lambda: 1.0)
    assert [attempts.failed(0.0) for _ in range(4)][-1] == pytest.approx(19.2)
    attempts.succeeded()
    assert attempts.failed(0.0) == pytest.approx(2.4)


def test_letters_are_built_up_to_the_size_of_a_batch() -> None:
    everything = CopiedRecords({}, 9)
    whole = build_letters(SOURCE, letters(0, 9), everything, 100_000, 7)
    assert whole.last == 9
    size = len(whole.records)
    assert build_letters(SOURCE, letters(0, 9), everything, size, 7) == whole
    assert build_letters(SOURCE, letters(0, 9), everything, size - 1, 7).last == 8
    one = build_letters(SOURCE, letters(0, 9), everything, 10, 7)
    assert (one.last, [each.timestamp for each in iter_records(one.records)]) == (0, [7])


def test_letters_are_built_as_far_as_records_were_copied() -> None:
    copied = CopiedRecords({4: Record(4, 1, b"k", b"v")}, 5)
    built = build_letters(SOURCE, letters(4, 9), copied, 100_000, 7)
    found = list(iter_records(built.records))
    assert (built.last, [each.value for each in found]) == (5, [b"v", None])
    assert build_letters(SOURCE, letters(4, 9), CopiedRecords({}, 3), 100_000, 7).last == 4


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_records_of_the_range_are_copied(codec: Compression) -> None:
    batches = [
        batch(0, 5, 6, compression=codec),
        batch(2, 7, transactional=True, compression=codec),
        batch(10, 8, 9, compression=codec),
    ]
    copied = copied_records(batches, 1, 10, 1000)
    assert {at: len(each.value or b"") for at, each in copied.records.items()} == {
        1: 6,
        2: 7,
        10: 8,
    }
    assert copied.last == 10


def test_records_are_copied_as_far_as_they_fit() -> None:
    copied = copied_records([batch(0, 100, 100, 100)], 0, 2, 250)
    assert (list(copied.records), copied.last) == ([0, 1], 1)
    again = copied_records([batch(0, 100, 100, 100)], 2, 2, 250)
    assert (list(again.records), again.last) == ([2], 2)
    several = copied_records([batch(0, 240), batch(1, 240)], 0, 1, 260)
    assert (list(several.records), several.last) == ([0], 0)


def test_record_that_never_fits_is_omitted() -> None:
    copied = copied_records([batch(0, 100, 1000, 100)], 0, 2, 500)
    assert (list(copied.records), copied.last) == ([0, 2], 2)


def test_compressed_batch_that_never_fits_is_omitted() -> None:
    large = batch(0, 100, 1000, compression=Compression.GZIP)
    copied = copied_records([large, batch(2, 100)], 0, 2, 500)
    assert (list(copied.records), copied.last) == ([2], 2)


def test_records_that_cannot_be_read_are_omitted() -> None:
    assert copied_records([], 0, 5, 500) == CopiedRecords({}, 5)
    damaged = bytearray(batch(0, 100))
    damaged[61] = 0x7F
    assert copied_records([bytes(damaged)], 0, 0, 500) == CopiedRecords({}, 0)


def test_letters_that_are_being_written_are_not_written_again() -> None:
    assert without(letters(0, 9), []) == [letters(0, 9)]
    assert without(letters(0, 9), [letters(0, 1), letters(4, 4)]) == [letters(2, 3), letters(5, 9)]
    assert without(letters(3, 5), [letters(0, 2), letters(2, 9)]) == []
    assert without(letters(3, 5), [letters(7, 9)]) == [letters(3, 5)]

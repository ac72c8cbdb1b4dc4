from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.errors import LogError
from minibroker.broker.log.producers import (
    BATCHES_RETAINED,
    BatchMetadata,
    Producer,
    ProducerTable,
    decode_snapshot,
    encode_snapshot,
)
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.records import BatchHeader, Record, build_batch, parse_batch_header

PID = 42


def header(sequence: int, count: int = 1, epoch: int = 0, pid: int = PID) -> BatchHeader:
    return parse_batch_header(
        build_batch(
            [Record(timestamp=1000 + sequence % 10)] * count,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


def take(table: ProducerTable, batch: BatchHeader) -> BatchMetadata | None:
    """What a log does: check, then remember at the next offsets unless it is a duplicate."""
    seen = table.check(batch)
    if seen is None:
        last_offset = table.end_offset + batch.last_offset_delta
        table.record(batch, last_offset, batch.max_timestamp)
        table.end_offset = last_offset + 1
    return seen


def refused(table: ProducerTable, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(LogError) as caught:
        table.check(batch)
    return caught.value.code


def test_sequence_gap_is_rejected() -> None:
    table = ProducerTable()
    assert take(table, header(0, 3)) is None
    assert take(table, header(3)) is None
    assert refused(table, header(5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert take(table, header(4)) is None


def test_unknown_producer_in_the_middle_of_its_sequence_is_rejected_if_that_is_checked() -> None:
    table = ProducerTable()
    with pytest.raises(LogError, match="sequence number 5") as caught:
        table.check_known(header(5), ErrorCode.UNKNOWN_PRODUCER_ID)
    assert caught.value.code is ErrorCode.UNKNOWN_PRODUCER_ID
    table.check_known(header(0), ErrorCode.UNKNOWN_PRODUCER_ID)
    take(table, header(0))
    table.check_known(header(5), ErrorCode.UNKNOWN_PRODUCER_ID)


def test_last_five_batches_are_recognized_as_duplicates() -> None:
    table = ProducerTable()
    for first in range(0, 14, 2):
        take(table, header(first, 2))
    for first in range(4, 14, 2):
        seen = table.check(header(first, 2))
        assert seen is not None
        assert (seen.first_offset, seen.last_offset) == (first, first + 1)
    assert len(table.producers[PID].batches) == BATCHES_RETAINED
    assert refused(table, header(2, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_overlapping_batch_is_rejected_instead_of_deduplicated() -> None:
    table = ProducerTable()
    take(table, header(0, 3))
    assert refused(table, header(0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(table, header(1, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_new_epoch_starts_at_sequence_0_and_fences_older_epoch() -> None:
    table = ProducerTable()
    take(table, header(0, epoch=1))
    assert refused(table, header(1, epoch=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert take(table, header(0, epoch=2)) is None
    assert refused(table, header(1, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(table, header(0, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert take(table, header(1, epoch=2)) is None


def test_unknown_producer_may_start_at_any_sequence() -> None:
    table = ProducerTable()
    assert take(table, header(17, epoch=4)) is None
    assert take(table, header(18, epoch=4)) is None
    assert refused(table, header(20, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequence_wraps_to_zero() -> None:
    table = ProducerTable()
    take(table, header(2**31 - 2, 3))
    assert table.producers[PID].last_sequence == 0
    assert table.check(header(2**31 - 2, 3)) is not None
    assert take(table, header(1)) is None
    take(table, header(2**31 - 1, pid=1))
    assert take(table, header(0, pid=1)) is None


def test_idle_producers_expire() -> None:
    table = ProducerTable([(1, Producer(0, 1000)), (2, Producer(0, 1001))])
    assert table.expire(1500, 500) == 1
    assert list(table.producers) == [2]


ENTRY = st.builds(
    lambda epoch, last_sequence, last_offset, delta, time: Producer(
        epoch, time, (BatchMetadata(last_sequence, last_offset, delta, time),)
    ),
    st.integers(0, 2**15 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
)


@given(producers=st.dictionaries(st.integers(0, 2**63 - 1), ENTRY, max_size=5))
def test_snapshot_round_trips_and_corrupt_one_is_rejected(producers: dict[int, Producer]) -> None:
    data = encode_snapshot(ProducerTable(producers.items(), 9))
    table = decode_snapshot(data, 9)
    assert (table.producers, table.end_offset) == (producers, 9)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(DecodeError):
            decode_snapshot(bytes(damaged), 9)
    with pytest.raises(DecodeError):
        decode_snapshot(data[:-1], 9)


def test_snapshot_includes_producer_without_batches() -> None:
    table = ProducerTable([(5, Producer(2, 1000))])
    again = decode_snapshot(encode_snapshot(table), 0)
    assert again.producers == {5: Producer(2, 1000)}


def test_snapshot_has_kafka_encoding() -> None:
    producer = Producer(1, 1000, (BatchMetadata(3, 9, 2, 999), BatchMetadata(5, 11, 1, 1000)))
    data = encode_snapshot(ProducerTable([(258, producer)]))
    assert data[:2].hex() == "0001"
    assert data[6:].hex(" ", 4) == bytes.fromhex(
        "00000001"
        "0000000000000102 0001 00000005 000000000000000b 00000001 00000000000003e8"
        "ffffffff ffffffffffffffff"
    ).hex(" ", 4)

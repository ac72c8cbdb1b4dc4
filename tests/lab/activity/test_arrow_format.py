"""Events in Arrow are those of the JSON, and nothing but such batches is read."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.lab.activity.arrow_format import (
    COLUMNS,
    SCHEMA,
    ArrowWriter,
    NoEventBatch,
    event_of,
    is_batch,
    read_batch,
)
from minibroker.lab.activity.events import JsonWriter, WrittenEvent
from tests.lab.activity.strategies import events, requests
from tests.lab.activity.test_events import REQUEST

HELD: WrittenEvent = (5, 6, ("L", 7, "::1"), "held", None, 120)


def value_of(made: list[WrittenEvent], sequence: int = 1) -> bytes:
    [record] = ArrowWriter(3, 5, 0.5).records(made, sequence)
    assert record.timestamp == made[-1][0] // 1000
    return record.value or b""


def read(value: bytes) -> list[dict[str, Any]]:
    return [event_of(row) for row in read_batch(value).to_pylist()]


REQUESTS = requests()


@settings(deadline=None)
@given(
    st.lists(events(), min_size=1, max_size=5) | st.lists(REQUESTS, min_size=1, max_size=5),
    st.integers(0, 2**62),
)
def test_decoded_events_match_json(made: list[WrittenEvent], sequence: int) -> None:
    records = JsonWriter(3, 5, 0.5).records(made, sequence)
    value = value_of(made, sequence)
    assert is_batch(value)
    assert read(value) == [json.loads(record.value or b"") for record in records]
    assert not any(is_batch(record.value or b"") for record in records)


def test_values_beyond_a_column_become_its_limit() -> None:
    infinite = float("inf")
    checks = ("alice", "", infinite, -infinite, 2**40, 77), None, None, None
    [found] = read(value_of([(*REQUEST[:16], checks, None, 2**31, 0)]))
    largest = sys.float_info.max
    assert (found["produce"]["rate"], found["produce"]["bound"]) == (largest, -largest)
    assert found["produce"]["throttle_ms"] == found["throttle_ms"] == 2**31 - 1


def test_text_that_is_no_unicode_is_replaced() -> None:
    [found] = read(value_of([(5, 6, ("L", 7, "half \ud800"), "held", None, 120)]))
    assert found["ip"] == "half ?"


def stream_of(batches: list[pa.RecordBatch], schema: pa.Schema = SCHEMA) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    value: bytes = out.getvalue().to_pybytes()
    return value


def test_stream_without_exactly_one_batch_is_rejected() -> None:
    batch = read_batch(value_of([REQUEST]))
    with pytest.raises(NoEventBatch, match="contains no Arrow record batch"):
        read_batch(stream_of([]))
    with pytest.raises(NoEventBatch, match="more than one Arrow record batch"):
        read_batch(stream_of([batch, batch]))


def test_other_columns_are_rejected_by_name() -> None:
    batch = read_batch(value_of([REQUEST]))
    without = batch.drop_columns(["io_ns"])
    with pytest.raises(NoEventBatch, match="`io_ns` is missing, not of type int64"):
        read_batch(stream_of([without], without.schema))
    at = batch.schema.get_field_index("io_ns")
    other = batch.set_column(at, "io_ns", pa.array([1.5]))
    with pytest.raises(NoEventBatch, match="`io_ns` is of type double, not of type int64"):
        read_batch(stream_of([other], other.schema))
    more = batch.append_column("colour", pa.array(["red"]))
    with pytest.raises(NoEventBatch, match="colour, not those of version 1"):
        read_batch(stream_of([more], more.schema))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_columns_are_rejected(compression: str) -> None:
    batch = read_batch(value_of([REQUEST]))
    for compressed in (batch, batch.slice(0, 0)):
        out = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(out, SCHEMA, options=options) as stream:
            stream.write_batch(compressed)
        with pytest.raises(NoEventBatch, match="columns are compressed"):
            read_batch(out.getvalue().to_pybytes())


def test_text_number_beyond_its_dictionary_is_rejected() -> None:
    batch = read_batch(value_of([REQUEST]))
    texts = pa.array(["alice"])
    beyond = pa.DictionaryArray.from_arrays(pa.array([9], pa.int32()), texts, safe=False)
    at = list(COLUMNS).index("user")
    with pytest.raises(NoEventBatch, match="not an Arrow IPC stream"):
        read_batch(stream_of([batch.set_column(at, SCHEMA.field("user"), beyond)]))


@pytest.mark.parametrize("seed", range(20))
def test_changed_bytes_are_read_or_rejected(seed: int) -> None:
    chance = random.Random(seed)
    made: list[WrittenEvent] = [REQUEST] * 20
    value = value_of([*made, HELD, (5, 6, 7)])
    for _ in range(100):
        changed = bytearray(value)
        for _ in range(chance.choice([1, 1, 2, 5])):
            changed[chance.randrange(len(changed))] = chance.choice([0, 1, 128, 255])
        if chance.random() < 0.2:
            del changed[chance.randrange(len(changed)) :]
        try:
            read_batch(bytes(changed)).validate(full=True)
        except NoEventBatch as error:
            assert str(error)  # noqa: PT017 - any reason will do

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner import murmur2 as oracle

from minibroker.client.partitioner import murmur2, partition_of


@given(st.binary(max_size=64))
def test_murmur2_agrees_with_kafka_python(data: bytes) -> None:
    assert murmur2(data) == oracle(data) & 0xFFFFFFFF


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_partition_of_is_in_range(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions

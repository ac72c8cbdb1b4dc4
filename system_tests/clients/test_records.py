"""Records through each client: every codec, order, sizes, times, acknowledgements."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import pytest

from system_tests.clients.conftest import CLIENTS, ClientOf
from system_tests.clients.model import CODECS, Client, Code, Record, Refused, Stored, drain

Names = Callable[[str], str]
BEGAN_MS = 1_700_000_000_000
MAX_WAIT_MS = 24_000


def some_records(stem: str) -> list[Record]:
    """Return records of every kind that a log must keep apart: none, empty, binary, repetitive."""
    odd = [
        Record(None, b"no key", (), BEGAN_MS),
        Record(b"", b"empty key", (("empty", b""),), BEGAN_MS + 1),
        Record(b"tombstone", None, (), BEGAN_MS + 2),
        Record(b"empty value", b"", (("h", b"1"), ("h", b"2"), ("\u00fc", b"\x00\xff")), BEGAN_MS),
        Record(bytes(range(256)), b"\x00" * 1000, (), BEGAN_MS + 3),
    ]
    plain = [
        Record(f"{stem}-{i}".encode(), f"{stem} value {i} ".encode() * 20, (), BEGAN_MS + i)
        for i in range(200)
    ]
    return odd + plain


def as_sent(stored: list[Stored]) -> list[Record]:
    return [each.record for each in stored]


@pytest.mark.parametrize("codec", CODECS)
def test_records_round_trip(client: Client, codec: str, fresh: Names) -> None:
    topic = fresh("records")
    client.create_topic(topic, 2)
    records = some_records(codec)
    assert client.produce(topic, records, partition=1, codec=codec) == [*range(len(records))]
    stored = client.read(topic, 1, 0, len(records))
    assert as_sent(stored) == records
    assert [each.offset for each in stored] == [*range(len(records))]
    assert client.bounds(topic, 1) == (0, len(records))
    assert client.bounds(topic, 0) == (0, 0)


@pytest.mark.java
def test_records_of_every_client_are_read_by_every_client(
    client_of: ClientOf, fresh: Names
) -> None:
    topic = fresh("babel")
    written: list[Record] = []
    client_of(CLIENTS[0]).create_topic(topic)
    for kind in CLIENTS:
        for codec in CODECS:
            records = some_records(f"{kind.name} {codec}")[:30]
            client_of(kind).produce(topic, records, codec=codec)
            written += records
    for kind in CLIENTS:
        stored = client_of(kind).read(topic, 0, 0, len(written))
        assert as_sent(stored) == written, f"as {kind.name} reads it"


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acknowledgements(client: Client, acks: str, fresh: Names) -> None:
    topic = fresh("acks")
    client.create_topic(topic)
    offsets = client.produce(topic, [Record(b"k", b"%d" % i) for i in range(10)], acks=acks)
    assert acks == "0" or offsets == [*range(10)]
    assert [each.value for each in client.read(topic, 0, 0, 10)] == [b"%d" % i for i in range(10)]


def test_idempotent_producer_keeps_order_over_many_batches(client: Client, fresh: Names) -> None:
    topic = fresh("idempotent")
    client.create_topic(topic)
    for run in range(3):
        values = [b"%d %d" % (run, i) for i in range(2000)]
        offsets = client.produce(topic, [Record(b"k", v) for v in values], idempotent=True)
        assert offsets == [*range(run * 2000, run * 2000 + 2000)]
        assert [each.value for each in client.read(topic, 0, run * 2000, 2000)][:2000] == values


def test_large_record_is_accepted_and_too_large_rejected(client: Client, fresh: Names) -> None:
    topic = fresh("large")
    client.create_topic(topic)
    large = Record(b"k", bytes(1_000_000))
    assert client.produce(topic, [large]) == [0]
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Record(b"k", bytes(1_100_000))])
    assert refused.value.code == Code.MESSAGE_TOO_LARGE
    assert client.produce(topic, [large]) == [1]
    assert [each.value for each in client.read(topic, 0, 0, 2)] == [large.value] * 2


def test_topic_may_allow_larger_records(client: Client, fresh: Names) -> None:
    topic = fresh("larger")
    client.create_topic(topic, configs={"max.message.bytes": "6000000"})
    value = b"0123456789" * 500_000
    client.produce(topic, [Record(None, value)])
    [stored] = client.read(topic, 0, 0, 1)
    assert stored.value == value


def test_waiting_fetch_returns_on_append(client: Client, fresh: Names) -> None:
    topic = fresh("waiting")
    client.create_topic(topic)
    client.produce(topic, [Record(None, b"first")])
    with closing(client.join(fresh("group"), topic, max_wait_ms=MAX_WAIT_MS)) as reader:
        assert [each.value for each in drain(reader, 1)] == [b"first"]
        reader.poll(0.2)  # the broker now holds the next fetch for so long
        began = time.monotonic()
        client.produce(topic, [Record(None, b"second")])
        assert [each.value for each in drain(reader, 1)] == [b"second"]
        assert (time.monotonic() - began) * 1000 < MAX_WAIT_MS / 2


def test_log_append_time_is_the_brokers(client: Client, fresh: Names) -> None:
    topic = fresh("append-time")
    client.create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
    client.produce(topic, [Record(None, b"v", (), BEGAN_MS)])
    [stored] = client.read(topic, 0, 0, 1)
    assert abs(stored.timestamp_ms - time.time() * 1000) < 60_000


def test_fetch_beyond_log_end_returns_offset_out_of_range(client: Client, fresh: Names) -> None:
    topic = fresh("beyond")
    client.create_topic(topic)
    client.produce(topic, [Record(None, b"v")])
    with pytest.raises(Refused) as refused:
        client.read(topic, 0, 100, 1)
    assert refused.value.code == Code.OFFSET_OUT_OF_RANGE

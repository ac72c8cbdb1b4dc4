"""Batches of real clients decode to what was produced, and ours decode with their readers.

``golden_batches.json`` contains one batch per client and codec, all with the same four records.
librdkafka's were produced to its mock cluster (the uncompressed one idempotently) and fetched back;
the others come from the record builder inside the client's own producer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from minibroker_protocol.compression import Compression
from minibroker_protocol.records import (
    Record,
    build_batch,
    iter_batches,
    iter_records,
    parse_batch_header,
    verify_crc,
)

START_MS = 1_700_000_000_000
RECORDS = [
    Record(0, START_MS, b"k1", b"a" * 150, (("h1", b"x"), ("h2", None))),
    Record(1, START_MS + 1, None, b"b" * 150),
    Record(2, START_MS + 2, b"k3", None),
    Record(3, START_MS + 5, b"", b""),
]
GOLDEN: list[dict[str, str]] = json.loads(
    (Path(__file__).parent / "golden_batches.json").read_text("utf-8")
)


@pytest.mark.parametrize(
    "golden", GOLDEN, ids=lambda golden: f"{golden['client']} {golden['codec']}"
)
def test_batch_of_client_is_decoded(golden: dict[str, str]) -> None:
    batch = bytes.fromhex(golden["batch"])
    header = parse_batch_header(batch)
    assert verify_crc(batch)
    assert [(0, header)] == list(iter_batches(batch))
    assert header.codec == Compression[golden["codec"].upper()]
    assert (header.size, header.record_count) == (len(batch), 4)
    assert (header.base_timestamp, header.max_timestamp) == (START_MS, START_MS + 5)
    assert list(iter_records(batch)) == RECORDS


def test_golden_batches_cover_every_client_and_codec() -> None:
    clients = {golden["client"].split()[0] for golden in GOLDEN}
    assert clients == {"librdkafka", "kafka-python", "aiokafka", "kafka-clients"}
    assert {(g["client"].split()[0], g["codec"]) for g in GOLDEN} == {
        (client, codec.name.lower()) for client in clients for codec in Compression
    }


def as_records(batch: Any) -> list[Record]:
    return [
        Record(r.offset, r.timestamp, r.key, r.value, tuple((k, v) for k, v in r.headers))
        for r in batch
    ]


@pytest.mark.parametrize("codec", Compression)
def test_aiokafka_decodes_built_batch(codec: Compression) -> None:
    theirs = AiokafkaBatch(build_batch(RECORDS, compression=codec))
    assert theirs.validate_crc()
    assert as_records(theirs) == RECORDS


# It needs packages of its own for the other codecs.
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_kafka_python_decodes_built_batch(codec: Compression) -> None:
    theirs = KafkaPythonBatch(build_batch(RECORDS, compression=codec))
    assert theirs.validate_crc()
    assert as_records(theirs) == RECORDS


def test_uncompressed_batch_equals_batch_of_kafka() -> None:
    (java,) = (
        bytes.fromhex(g["batch"])
        for g in GOLDEN
        if g["client"].startswith("kafka-clients") and g["codec"] == "none"
    )
    epoch = parse_batch_header(java).partition_leader_epoch
    assert build_batch(RECORDS, partition_leader_epoch=epoch) == java

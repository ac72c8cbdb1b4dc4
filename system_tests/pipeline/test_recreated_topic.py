"""Invalid offsets: a broker was replaced by a new one with other data, or deleted events that were
not read yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import duckdb
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.lab.activity.events import TOPIC
from system_tests.harness.brokers import free_port, start_minibroker
from system_tests.pipeline.job_launchers import by_minibroker, run_to_completion
from tests.pipeline.random_events import events

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

FIRST: Final = 50
SECOND: Final = 120
"""More than that, so that the offset which was read up to is there again."""
KEPT_FROM: Final = 70
"""Of the broker's segments at that time."""


def test_ingest_reads_recreated_topic_of_new_broker(tmp_path: Path) -> None:
    listener = f"PLAINTEXT://127.0.0.1:{free_port()}"
    for begin, end in ((0, FIRST), (FIRST, FIRST + SECOND)):
        broker = start_minibroker(listener=listener)
        try:
            make_topic(broker.bootstrap_servers)
            produce_events(broker.bootstrap_servers, begin, end)
            ingest(broker.bootstrap_servers, tmp_path)
        finally:
            broker.stop()
            broker.forget()
    assert sequences(tmp_path) == list(range(FIRST + SECOND))


def test_ingest_after_delete_records_reports_gap_and_reads_rest(tmp_path: Path) -> None:
    broker = start_minibroker()
    server = broker.bootstrap_servers
    try:
        make_topic(server)
        produce_events(server, 0, FIRST)
        ingest(server, tmp_path)
        produce_events(server, FIRST, FIRST + SECOND)
        admin = AdminClient({"bootstrap.servers": server, "log_level": 0})
        for done in admin.delete_records([TopicPartition(TOPIC, 0, KEPT_FROM)]).values():
            done.result()
        output = ingest(server, tmp_path)
        produce_events(server, FIRST + SECOND, FIRST + SECOND + 1)
        ingest(server, tmp_path)
    finally:
        broker.stop()
        broker.forget()
    assert f"{KEPT_FROM - FIRST} records were deleted by the broker's retention" in output
    assert sequences(tmp_path) == [*range(FIRST), *range(KEPT_FROM, FIRST + SECOND + 1)]


def ingest(server: str, folder: Path) -> str:
    """Return the output of the job."""
    words = ("--from", server, "--into", str(folder / "activity"))
    done = run_to_completion(by_minibroker("ingest", *words))
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


def sequences(folder: Path) -> list[int]:
    query = f"select sequence from '{folder}/activity/hour=*/bucket=*/*.parquet' order by all"
    return [sequence for (sequence,) in duckdb.execute(query).fetchall()]


def make_topic(server: str) -> None:
    admin = AdminClient({"bootstrap.servers": server, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result()


def produce_events(server: str, begin: int, end: int) -> None:
    """Events with these sequences."""
    producer = Producer({"bootstrap.servers": server})
    for value in events(end - begin, 1, start=begin):
        producer.produce(TOPIC, value)
    assert producer.flush(60) == 0

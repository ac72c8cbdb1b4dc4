"""Brokers that begin anew where others were, with data of their own: one table has the events of
both, though their offsets are the same.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import duckdb
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.activity.schema import TOPIC
from system_tests.harness.brokers import free_port, start_minibroker
from system_tests.pipeline.starting import by_minibroker
from tests.pipeline.made import events

pytestmark = [pytest.mark.minibroker, pytest.mark.java, pytest.mark.timeout(600)]

FIRST: Final = 50
SECOND: Final = 120
"""More than that, so that the offset which was read up to is there again."""


def test_events_of_both_are_taken_in(tmp_path: Path) -> None:
    listener = f"PLAINTEXT://127.0.0.1:{free_port()}"
    table = tmp_path / "activity"
    for begin, end in ((0, FIRST), (FIRST, FIRST + SECOND)):
        broker = start_minibroker(listener=listener)
        try:
            tell(broker.bootstrap_servers, events(end - begin, 1, start=begin))
            start = by_minibroker(
                "ingest", "--from", broker.bootstrap_servers, "--into", str(table)
            )
            done = subprocess.run(
                start.args, env=start.env, capture_output=True, text=True, timeout=250, check=False
            )
            assert done.returncode == 0, done.stderr[-4000:]
        finally:
            broker.stop()
            broker.forget()
    query = f"select sequence from '{table}/hour=*/bucket=*/*.parquet' order by all"
    found = [sequence for (sequence,) in duckdb.execute(query).fetchall()]
    assert found == list(range(FIRST + SECOND))


def tell(server: str, values: list[bytes]) -> None:
    admin = AdminClient({"bootstrap.servers": server, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result()
    producer = Producer({"bootstrap.servers": server})
    for value in values:
        producer.produce(TOPIC, value)
    assert producer.flush(60) == 0

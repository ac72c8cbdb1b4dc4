"""A real client is recorded; its requests are replayed at another broker, its responses at it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from minibroker.testing import MiniBroker
from system_tests.harness.waiting import PATIENCE_S
from system_tests.laboratory.clients import Aiokafka, ConfluentKafka, KafkaPython, PythonClient

pytestmark = pytest.mark.minibroker

VALUES: Final = [b"one", b"two", b"three"]
SETTINGS: Final = {"group.initial.rebalance.delay.ms": 0}


def record(kind: type[PythonClient], path: Path, topic: str) -> None:
    """Record an idempotent producer and a consumer that commits."""
    with MiniBroker(settings=SETTINGS) as broker, broker.journal as journal:
        broker.create_topic(topic)
        client = kind(broker.bootstrap_servers)
        client.produce(topic, VALUES, idempotent=True)
        assert client.consume(topic, len(VALUES), f"{topic}-g") == VALUES
        assert journal.save(path) > len(VALUES)


def replay(path: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "minibroker", "replay", str(path), "--json", *options]


def report_of(path: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        replay(path, *options), check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def serving(path: Path) -> Iterator[str]:
    """A server that answers as recorded; gives its address."""
    command = replay(path, "--serve", "127.0.0.1:0", "--speed", "max")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["bootstrap_servers"]
        finally:
            process.terminate()


@pytest.mark.parametrize(
    "kind", [ConfluentKafka, KafkaPython, Aiokafka], ids=lambda kind: kind.name
)
def test_recorded_client_is_replayed_at_another_broker(
    kind: type[PythonClient], tmp_path: Path, fresh: Callable[[str], str]
) -> None:
    path, topic = tmp_path / "capture.jsonl", fresh("replay")
    record(kind, path, topic)
    with MiniBroker(settings=SETTINGS) as broker:
        broker.create_topic(topic)
        for times in (1, 2):  # The second time, all ids are other ones than recorded.
            report = report_of(path, "-b", broker.bootstrap_servers, "--speed", "max")
            assert report["unanswered"] == 0
            assert not [each for each in report["differing"] if each["api"] == "PRODUCE"], report
            [partition] = broker.control.get("v1", "topics", topic)["partitions"]
            assert partition["log_end_offset"] == times * len(VALUES)
        [committed] = broker.control.get("v1", "groups", f"{topic}-g")["offsets"]
        assert committed["offset"] == 2 * len(VALUES)


def test_recorded_responses_are_replayed_at_the_client(
    tmp_path: Path, fresh: Callable[[str], str]
) -> None:
    path, topic = tmp_path / "capture.jsonl", fresh("replay")
    record(ConfluentKafka, path, topic)
    with serving(path) as address:
        client = ConfluentKafka(address)
        client.produce(topic, VALUES, idempotent=True)
        assert client.consume(topic, len(VALUES), f"{topic}-g") == VALUES

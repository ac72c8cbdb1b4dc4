"""Kafka with a plug-in for clients' metrics, and minibroker, answer the same to clients that push.

``INTENDED`` gives the reason of each intended difference, as in `test_same_answers`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from system_tests.harness.brokers import start_kafka, start_minibroker
from system_tests.harness.jars import java_driver
from system_tests.peers.conversation import differences, prepare, run_conversation
from system_tests.peers.telemetry import pushes

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

INTENDED: Final = dict.fromkeys(
    ("without: garbage: first push", "with: garbage: first push"),
    "Kafka leaves the metrics to its plug-in; here they are read, and invalid ones refused",
)


def test_kafka_and_minibroker_answer_pushes_alike(kafka_libs: Path, tmp_path: Path) -> None:
    plugin = {"metric.reporters": "TelemetryPlugin"}
    theirs = start_kafka(tmp_path / "kafka", settings=plugin, plugins=java_driver())
    answers = []
    with theirs, start_minibroker() as ours:
        for broker in (ours, theirs):
            prepare(broker)
            answers.append(run_conversation(broker, pushes).answers)
    own, kafka = answers
    differ = {name: differences(kafka[name], own[name]) for name in kafka}
    unlike = {name: lines for name, lines in differ.items() if lines}
    unknown = {name: lines for name, lines in unlike.items() if name not in INTENDED}
    assert not unknown, f"Kafka's answer / ours: {unknown}"
    assert unlike.keys() == INTENDED.keys()

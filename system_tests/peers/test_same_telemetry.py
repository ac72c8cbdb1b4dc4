"""Kafka with a plug-in for clients' metrics, and minibroker, answer the same to clients that push.

Subscriptions, accepted and refused pushes (KIP-714), and their pace. Invariant: each case has a
client instance of its own, because brokers limit how often one may ask. ``INTENDED`` gives the
reason of each intended difference, as in `test_same_answers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from minibroker_protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
)
from minibroker_protocol.messages.push_telemetry import PushTelemetryRequest
from minibroker_protocol.types import Uuid
from system_tests.harness.brokers import start_kafka, start_minibroker
from system_tests.harness.jars import java_driver
from system_tests.peers.configs import SET, alter
from system_tests.peers.conversation import SendRequest, differences, prepare, run_conversation
from system_tests.peers.resources import METRICS

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

ZERO: Final = Uuid(16)
RESERVED: Final = bytes(15) + b"\x01"
LARGE: Final = 1024 * 1024


def instances() -> Iterator[Uuid]:
    """Ids of client instances, each once."""
    for number in range(1, 1000):
        yield b"instance" + number.to_bytes(8, "big")


def subscription(instance: Uuid) -> GetTelemetrySubscriptionsRequest:
    return GetTelemetrySubscriptionsRequest(client_instance_id=instance)


def pushes(ask: SendRequest) -> None:
    """Clients without a subscription, and then with one."""
    unused = instances()
    for about in ("without", "with"):
        if about == "with":
            changes = ("interval.ms", SET, "60000"), ("metrics", SET, "a.b,c.d")
            ask("subscribed", alter(METRICS, "all", *changes), 1)
        ask(f"{about}: reserved id", subscription(RESERVED), 0)
        ask(f"{about}: reserved id pushes", PushTelemetryRequest(client_instance_id=RESERVED), 0)
        ask(f"{about}: no id pushes", PushTelemetryRequest(client_instance_id=ZERO), 0)
        first = ask(f"{about}: no id", subscription(ZERO), 0)
        ask.answers[f"{about}: an id is given"] = any(first.client_instance_id)
        unknown = PushTelemetryRequest(client_instance_id=next(unused), subscription_id=7)
        ask(f"{about}: unknown pushes", unknown, 0)
        for label, subscribed, fields in (
            ("nothing", True, {}),
            ("another subscription", False, {}),
            ("at the end", True, {"terminating": True}),
            ("garbage", True, {"metrics": b"\xff" * 10}),
            ("no compression", True, {"compression_type": 9}),
            ("no zstd", True, {"compression_type": 4, "metrics": b"\xff" * 10}),
            ("too much", True, {"metrics": bytes(LARGE + 1)}),
        ):
            instance = next(unused)
            known = ask(f"{about}: {label}: asks", subscription(instance), 0)
            ask(f"{about}: {label}: asks again", subscription(instance), 0)
            push = PushTelemetryRequest(
                client_instance_id=instance,
                subscription_id=known.subscription_id + (0 if subscribed else 1),
                **fields,
            )
            for time in ("first", "second", "third"):
                ask(f"{about}: {label}: {time} push", push, 0)
            ask(f"{about}: {label}: asks later", subscription(instance), 0)


CONVERSATIONS: Final = (pushes,)


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

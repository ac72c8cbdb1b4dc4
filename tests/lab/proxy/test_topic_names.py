from __future__ import annotations

import pytest

from minibroker.lab.proxy import topic_names
from minibroker.lab.proxy.topic_names import TopicNames
from minibroker_protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from minibroker_protocol.types import ZERO_UUID


def response(*topics: tuple[int, str | None]) -> MetadataResponse:
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(topic_id=number.to_bytes(16, "big"), name=name)
            for number, name in topics
        ]
    )


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_names_are_learned_and_replaced() -> None:
    names = TopicNames()
    names.learn(response((1, "a"), (2, "b"), (3, None), (0, "old version")))
    assert [names.get(id_of(number)) for number in range(4)] == [None, "a", "b", None]
    names.learn(response((1, "c")))
    assert names.get(id_of(1)) == "c"
    assert names.get(ZERO_UUID) is None


def test_oldest_names_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_names, "TOPICS_MAX", 2)
    names = TopicNames()
    names.learn(response((1, "a"), (2, "b")))
    names.learn(response((1, "a"), (3, "c")))
    assert [names.get(id_of(number)) for number in (1, 2, 3)] == ["a", None, "c"]

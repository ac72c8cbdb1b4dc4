"""Every file of facts is a persona, and a file that is none is refused with the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from minibroker.broker.personas.persona import FACTS, NAMES, BadFacts, load, parse
from minibroker_protocol.registry import ApiKey

GOOD: dict[str, Any] = {
    "source": "a broker",
    "versions": {"18": [0, 3]},
    "features": None,
    "behaviour": {
        "cluster_id_prefix": "",
        "new_topic_error": 5,
        "throttled": "muted",
        "unknown_api_versions_lists": "own",
        "unknown_producer_error": 0,
    },
    "defaults": {},
}


def test_names_are_those_of_the_files() -> None:
    assert sorted(NAMES) == sorted(path.stem for path in FACTS.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_persona_has_a_source_and_the_apis_of_every_client(name: str) -> None:
    persona = load(name)
    assert str(persona) == persona.name == name
    assert persona.source.startswith(("Apache Kafka ", "Redpanda "))
    wanted = {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS}
    assert wanted <= persona.versions.keys()
    assert persona.versions.keys() <= set(ApiKey)


def test_controller_requests_are_those_of_brokers_with_zookeeper() -> None:
    with_zookeeper = [name for name in NAMES if 4 in load(name).versions]
    assert with_zookeeper == ["kafka-0.11", "kafka-1.1", "kafka-2.0", "kafka-2.4", "kafka-2.8"]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"source": ""}, "source is empty"),
        ({"versions": {"18": [3, 0]}}, "a range is empty or negative"),
        ({"versions": {"x": [0, 3]}}, "invalid literal"),
        ({"versions": {"18": [0]}}, "high"),
        ({"features": {"supported": {"f": [2, 1]}, "finalized": {}, "epoch": 0}}, "a range"),
        ({"features": {}}, "supported"),
        ({"behaviour": {}}, "cluster_id_prefix"),
        ({"behaviour": {**GOOD["behaviour"], "throttled": "late"}}, "throttled must be one of"),
        (
            {"behaviour": {**GOOD["behaviour"], "unknown_api_versions_lists": "some"}},
            "unknown_api_versions_lists must be one of all, own, none",
        ),
    ],
)
def test_bad_facts_are_refused_with_the_field(changed: dict[str, Any], problem: str) -> None:
    assert parse("x", json.loads(json.dumps(GOOD))).versions == {18: (0, 3)}
    with pytest.raises(BadFacts, match=rf"^x: .*{problem}"):
        parse("x", {**GOOD, **changed})


def test_missing_fact_is_refused_with_its_name() -> None:
    with pytest.raises(BadFacts, match="defaults"):
        parse("x", {name: value for name, value in GOOD.items() if name != "defaults"})

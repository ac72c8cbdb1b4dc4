"""Personas: the facts about brokers of other versions and makers, each read from its file.

Owns the facts and their check; ``settings.persona`` is their form. It must never know what this
broker serves. Invariant: a persona that was read is complete and consistent; each file names the
source of its facts. Files are written by ``python -m system_tests.personas``, which starts the
broker itself. In Kafka the facts are spread over ``ApiKeys``, ``ApiVersionsResponse``,
``KafkaApis`` and ``Features``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from minibroker.broker.settings.persona import (
    LISTED_WITH_ERROR,
    THROTTLED,
    Behaviour,
    Features,
    Persona,
    VersionRange,
)

FACTS: Final = Path(__file__).with_name("facts")

NAMES: Final = (
    "kafka-0.11",
    "kafka-1.1",
    "kafka-2.0",
    "kafka-2.4",
    "kafka-2.8",
    "kafka-3.3",
    "kafka-3.9",
    "kafka-4.0",
    "redpanda",
)
"""All personas, in the order of the reference."""


class BadFacts(ValueError):
    """A file of facts that is not one; the text names the file and the field."""


def load(name: str) -> Persona:
    """Read a persona by its name, which is one of ``NAMES``. Raises ``BadFacts``."""
    text = (FACTS / f"{name}.json").read_text(encoding="utf-8")
    return parse(name, json.loads(text))


def parse(name: str, facts: Mapping[str, Any]) -> Persona:
    """Check the facts of a file. Raises ``BadFacts``."""
    try:
        persona = Persona(
            name=name,
            source=str(facts["source"]),
            versions={int(key): VersionRange(*each) for key, each in facts["versions"].items()},
            features=_features(facts["features"]),
            behaviour=Behaviour(**facts["behaviour"]),
            defaults=dict(facts["defaults"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFacts(f"{name}: {type(error).__name__}: {error}") from None
    problem = _problem(persona)
    if problem:
        raise BadFacts(f"{name}: {problem}")
    return persona


def _features(facts: Mapping[str, Any] | None) -> Features | None:
    if facts is None:
        return None
    supported = {feature: VersionRange(*each) for feature, each in facts["supported"].items()}
    return Features(supported, dict(facts["finalized"]), int(facts["epoch"]))


def _problem(persona: Persona) -> str:
    ranges = [*persona.versions.values()]
    if persona.features is not None:
        ranges += persona.features.supported.values()
    behaviour = persona.behaviour
    if not persona.source:
        return "source is empty"
    if any(not 0 <= each.low <= each.high for each in ranges):
        return "a range is empty or negative"
    if behaviour.unknown_api_versions_lists not in LISTED_WITH_ERROR:
        return f"unknown_api_versions_lists must be one of {', '.join(LISTED_WITH_ERROR)}"
    if behaviour.throttled not in THROTTLED:
        return f"throttled must be one of {', '.join(THROTTLED)}"
    return ""

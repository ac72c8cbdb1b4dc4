"""Declarations of the broker's settings: those that are effective are read by the code."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.quotas.types import QuotaType
from minibroker.broker.settings import (
    BROKER_SETTINGS,
    Setting,
    access_definitions,
    activity_definitions,
    admin_definitions,
    cleaner_definitions,
    connection_definitions,
    definitions,
    fetch_definitions,
    group_definitions,
    ineffective_definitions,
    journal_definitions,
    persona_definitions,
    quota_definitions,
    sasl_definitions,
    security_definitions,
    topics,
    transaction_definitions,
    zookeeper_definitions,
)
from minibroker.broker.settings.topics import synonyms_of

PACKAGE = Path(__file__).parents[3] / "minibroker"
DECLARATIONS = (
    "access_definitions.py",
    "activity_definitions.py",
    "admin_definitions.py",
    "cleaner_definitions.py",
    "connection_definitions.py",
    "definitions.py",
    "fetch_definitions.py",
    "group_definitions.py",
    "ineffective_definitions.py",
    "persona_definitions.py",
    "quota_definitions.py",
    "sasl_definitions.py",
    "security_definitions.py",
    "topics.py",
    "transaction_definitions.py",
    "zookeeper_definitions.py",
)


@cache
def words_read() -> frozenset[str]:
    """Return every name in the broker's source, except for the declarations of settings."""
    texts = (
        path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if not (path.parent.name == "config" and path.name in DECLARATIONS)
    )
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def constants(*modules: Any) -> dict[str, Setting[Any]]:
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Setting)
    }


BROKER = constants(
    access_definitions,
    activity_definitions,
    admin_definitions,
    cleaner_definitions,
    connection_definitions,
    definitions,
    fetch_definitions,
    group_definitions,
    ineffective_definitions,
    journal_definitions,
    persona_definitions,
    quota_definitions,
    sasl_definitions,
    security_definitions,
    transaction_definitions,
    zookeeper_definitions,
)
TOPIC = constants(topics)


def acts(name: str, setting: Setting[Any]) -> bool:
    """Whether the code reads the setting, or what it is the default of: a quota, a topic config."""
    defaults_of_quotas = {kind.row.default_setting for kind in QuotaType}
    return (
        name in words_read()
        or setting.name in defaults_of_quotas
        or any(
            not topic.no_effect and topic_name in words_read()
            for topic_name, topic in TOPIC.items()
            if setting in [synonym.setting for synonym in synonyms_of(topic)]
        )
    )


def test_constant_is_named_after_its_setting() -> None:
    assert len(BROKER) == len(BROKER_SETTINGS)
    for name, setting in {**BROKER, **TOPIC}.items():
        assert name == setting.name.upper().replace(".", "_")


@pytest.mark.parametrize("name", BROKER)
def test_broker_setting_is_used_or_documents_no_effect(name: str) -> None:
    assert acts(name, BROKER[name]) != bool(BROKER[name].no_effect)


@pytest.mark.parametrize("name", [name for name in TOPIC if name not in BROKER])
def test_topic_config_is_used_or_documents_no_effect(name: str) -> None:
    assert (name in words_read()) != bool(TOPIC[name].no_effect)


def test_broker_synonym_of_topic_config_is_dynamic() -> None:
    stand_ins = [synonyms_of(topic)[0].setting for topic in TOPIC.values() if synonyms_of(topic)]
    assert stand_ins
    assert [setting.name for setting in stand_ins if not setting.dynamic] == []

"""Names that are no settings: unsupported ones of Kafka, and those similar to a mistyped one."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.settings import BROKER_SETTINGS
from minibroker.broker.settings.names import (
    KNOWN_UNSERVED,
    is_unsupported_kafka_setting,
    similar_names,
)

# ------------------------------------------------------------------------------------------- names


def test_no_served_setting_is_listed_as_unserved() -> None:
    assert not KNOWN_UNSERVED & set(BROKER_SETTINGS)


@pytest.mark.parametrize(
    "name",
    [
        "ssl.keystore.password",
        "zookeeper.clientCnxnSocket",
        "remote.log.storage.system.enable",
        "listener.name.internal.ssl.keystore.password",
        "listener.name.internal.plain.sasl.login.class",
        "listener.name.internal.num.network.threads",
    ],
)
def test_kafka_config_name_is_known(name: str) -> None:
    assert is_unsupported_kafka_setting(name)


@pytest.mark.parametrize("name", ["ssl.keystor.location", "listener.name.a", "num.io.threads", ""])
def test_other_config_name_is_unknown(name: str) -> None:
    assert not is_unsupported_kafka_setting(name)


# ----------------------------------------------------------------------------------- similar_names


NAMES = ["num.partitions", "num.io.threads", "num.network.threads", "listeners"]


def best(name: str, similarity_min: float = 0.6) -> list[str]:
    return similar_names(name, NAMES, count_max=1, similarity_min=similarity_min)


def test_mistyped_name_is_found() -> None:
    assert best("num.partition") == ["num.partitions"]
    assert best("num.oi.threads") == ["num.io.threads"]
    assert best("listners") == ["listeners"]
    assert best("something.else") == []


def test_similar_names_are_sorted_and_bounded() -> None:
    found = similar_names("num.threads", NAMES, count_max=2, similarity_min=0.6)
    assert found == ["num.io.threads", "num.network.threads"]


def test_long_name_is_not_compared() -> None:
    began = time.perf_counter()
    assert best("x" * 10_000_000) == []
    assert time.perf_counter() - began < 1


@given(st.lists(st.text(max_size=10)), st.text(max_size=10))
def test_every_name_is_most_similar_to_itself(names: list[str], name: str) -> None:
    assert similar_names(name, [*names, name], count_max=1, similarity_min=1.0) == [name]

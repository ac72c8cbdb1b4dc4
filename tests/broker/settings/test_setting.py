"""Declarations: a setting is declared once, with defaults that obey its own rule."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.settings import TOPIC_SETTINGS
from minibroker.broker.settings.setting import (
    BOOLEAN,
    BROKER_SETTINGS,
    CONNECT_STRING,
    DOUBLE,
    HOST_PORT,
    INT,
    KNOWN_UNSERVED,
    LIST,
    LONG,
    SHORT,
    BadValueError,
    ConnectString,
    HostPort,
    JaasEntry,
    Setting,
    SettingType,
    any_valid,
    at_least,
    between,
    equals,
    is_unsupported_kafka_setting,
    one_of,
    optional,
    parse_jaas,
    render_jaas,
    similar_names,
    some_of,
)

# ------- Names that are no settings: unsupported ones of Kafka, and those similar to a mistyped one


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


def test_duplicate_setting_declaration_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"num\.io\.threads is declared twice"):
        Setting("num.io.threads", INT, default=1, doc="")


def test_default_outside_of_constraint_is_rejected() -> None:
    with pytest.raises(ValueError, match="the default 0 is not at least 1"):
        Setting("test.only", INT, default=0, valid=at_least(1), doc="")
    with pytest.raises(ValueError, match="the default -1 is not at least 1"):
        Setting("test.only", INT, default=1, kafka_default=-1, valid=at_least(1), doc="")
    assert "test.only" not in BROKER_SETTINGS


def test_surrounding_whitespace_is_ignored() -> None:
    threads = BROKER_SETTINGS["num.io.threads"]
    assert threads.parse(" 3 ") == 3
    with pytest.raises(BadValueError, match="must be between 1 and 64"):
        threads.parse("65")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (INT, "-5", -5),
        (INT, "+5", 5),
        (LONG, str(2**63 - 1), 2**63 - 1),
        (SHORT, "-32768", -32768),
        (DOUBLE, "0.5", 0.5),
        (BOOLEAN, "TRUE", True),
        (BOOLEAN, "false", False),
        (LIST, " a , b,", ("a", "b")),
        (LIST, "", ()),
        (HOST_PORT, "[::1]:80", HostPort("::1", 80)),
        (HOST_PORT, ":80", HostPort("", 80)),
        (CONNECT_STRING, "a", ConnectString((HostPort("a", 2181),), "")),
        (
            CONNECT_STRING,
            "a:1, [::1]:2/",
            ConnectString((HostPort("a", 1), HostPort("::1", 2)), ""),
        ),
        (CONNECT_STRING, "a:1/x/y/", ConnectString((HostPort("a", 1),), "/x/y")),
        (optional(INT), "", None),
        (optional(INT), "7", 7),
    ],
)
def test_valid_text_is_parsed(kind: SettingType[Any], text: str, value: object) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (INT, "2147483648", "between -2147483648 and 2147483647"),
        (INT, "1_000", "whole number"),
        (INT, "1.5", "whole number"),
        (INT, "\uff19", "whole number"),
        (INT, "9" * 5000, "whole number"),
        (SHORT, "32768", "between -32768 and 32767"),
        (DOUBLE, "nan", "finite"),
        (DOUBLE, "much", "must be a number"),
        (BOOLEAN, "yes", "true or false"),
        (HOST_PORT, "localhost", "host:port"),
        (HOST_PORT, "localhost:70000", "port 70000"),
        (HOST_PORT, "::1:80", "host:port"),
    ],
)
def test_invalid_value_is_rejected_with_explanation(
    kind: SettingType[Any], text: str, message: str
) -> None:
    with pytest.raises(BadValueError, match=message):
        kind.parse(text)


def test_constraints_describe_valid_values() -> None:
    minus_one_or_more = any_valid(equals(-1), at_least(1))
    assert [minus_one_or_more.check(value) for value in (-1, 0, 1)] == [True, False, True]
    assert between(1, 3).check(3)
    assert not between(1, 3).check(4)
    assert one_of("a", "b").text == "one of a, b"
    assert not some_of("a").check(())
    assert not some_of("a").check(("a", "b"))


@pytest.mark.parametrize(
    "setting", [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()], ids=lambda s: s.name
)
def test_every_default_round_trips_as_text(setting: Any) -> None:
    same = setting.kafka_default is None
    for value in (setting.default, setting.default if same else setting.kafka_default):
        assert setting.parse(setting.render(value)) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_longs_round_trip_as_text(value: int) -> None:
    assert LONG.parse(LONG.render(value)) == value


@given(st.text())
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    kinds: list[SettingType[Any]] = [INT, LONG, DOUBLE, BOOLEAN, LIST, HOST_PORT]
    for kind in kinds:
        try:
            value = kind.parse(text)
        except BadValueError:
            continue
        assert kind.parse(kind.render(value)) == value


LINE = """org.apache.kafka.common.security.plain.PlainLoginModule required \\
    username="admin"
    user_admin='x' ;""".replace("'x'", '"ad;min=\\"s\\\\"').replace("\\\n", "\n")


def test_jaas_config_with_line_breaks_and_quotes_is_parsed() -> None:
    entry = parse_jaas(LINE)
    assert entry.module_name == "PlainLoginModule"
    assert entry.flag == "required"
    assert entry.options == (("username", "admin"), ("user_admin", 'ad;min="s\\'))
    assert entry.users == {"admin": 'ad;min="s\\'}
    assert parse_jaas("M required;") == JaasEntry("M", "required", ())


@given(st.dictionaries(st.from_regex("user_[a-z]{1,5}", fullmatch=True), st.text(min_size=1)))
def test_jaas_config_round_trips_as_text(options: dict[str, str]) -> None:
    entry = JaasEntry("a.b.C", "required", tuple(options.items()))
    assert parse_jaas(render_jaas(entry)) == entry


@pytest.mark.parametrize(
    "text",
    [
        "hunter2",
        "M required hunter2",
        "M sometimes hunter2=x;",
        "M required hunter2;",
        "M required user_a hunter2 = ;",
        'M required a="hunter2;',
        "M required a=hunter2; N required;",
    ],
)
def test_invalid_jaas_config_is_rejected_without_its_text(text: str) -> None:
    with pytest.raises(BadValueError) as caught:
        parse_jaas(text)
    assert "hunter2" not in str(caught.value)


@given(st.text(alphabet='a=";\\ \n', max_size=30))
def test_any_text_parses_as_jaas_config_or_is_rejected(text: str) -> None:
    try:
        parse_jaas(text)
    except BadValueError:
        return

"""Entities of a command line: both forms, in any order, and what cannot go together."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies

from minibroker.broker.quotas import arguments
from minibroker.broker.quotas.arguments import (
    ArgumentMistake,
    Entities,
    check_keys,
    chosen,
    from_long_options,
    from_short_options,
    parse_additions,
    parse_deletions,
    parse_quota,
    quota_text,
)

NOTHING = Entities((), ())
TYPE, NAME, DEFAULT = "entity_type", "entity_name", "entity_default"


def test_entity_names_are_matched_to_types_by_position() -> None:
    given = [(NAME, "A"), (TYPE, "users"), (DEFAULT, ""), (TYPE, "clients")]
    assert from_long_options(given) == (("users", "clients"), ("A", ""))
    assert from_long_options([(TYPE, "brokers")]) == (("brokers",), ())


def test_short_options_are_converted_in_fixed_order() -> None:
    assert from_short_options({"clients": "B", "ips": None}, {"users": True, "ips": False}) == (
        ("clients", "users"),
        ("B", ""),
    )
    assert from_short_options({"ips": "::1"}, {}) == (("ips",), ("::1",))


@pytest.mark.parametrize(
    ("types", "names"),
    [
        (["topics"], ["t"]),
        (["topics"], []),
        (["brokers"], ["1"]),
        (["brokers"], [""]),
        (["ips"], ["127.0.0.1"]),
        (["ips"], []),
        (["users", "clients"], ["u", ""]),
        (["clients", "users"], ["c"]),
    ],
)
def test_describable_entities_are_accepted_in_both_forms(
    types: list[str], names: list[str]
) -> None:
    entities = Entities(tuple(types), tuple(names))
    assert chosen(entities, NOTHING, alter=False) == entities
    assert chosen(NOTHING, entities, alter=False) == entities


def test_missing_entity_name_means_default_entity_when_altering() -> None:
    assert chosen(Entities(("ips",), ()), NOTHING, alter=True) == (("ips",), ("",))
    both = Entities(("users", "clients"), ("u",))
    assert chosen(both, NOTHING, alter=True) == (("users", "clients"), ("u", ""))
    with pytest.raises(ArgumentMistake, match="An entity name must be specified with topics"):
        chosen(Entities(("topics",), ()), NOTHING, alter=True)


@pytest.mark.parametrize(
    ("types", "names", "words"),
    [
        ([], [], "At least one entity type"),
        ([], ["a"], "At least one entity type"),
        (["colours"], ["a"], "Invalid entity type colours"),
        (["ips", "ips"], ["::1", "::1"], "Duplicate entity type"),
        (["topics", "brokers"], ["t", "1"], "may be specified together"),
        (["ips", "users"], ["::1", "u"], "may be specified together"),
        (["topics"], ["t", "u"], "More entity names"),
        (["topics"], [""], "An entity name must be specified with topics"),
        (["brokers"], ["one"], "must be a valid integer broker id, but it is: one"),
    ],
)
def test_invalid_entities_are_rejected_with_kafka_message(
    types: list[str], names: list[str], words: str
) -> None:
    with pytest.raises(ArgumentMistake, match=words):
        chosen(Entities(tuple(types), tuple(names)), NOTHING, alter=False)


def test_long_and_short_entity_options_together_are_rejected() -> None:
    one = Entities(("ips",), ("::1",))
    with pytest.raises(ArgumentMistake, match="should not be used in conjunction"):
        chosen(one, one, alter=False)
    with pytest.raises(ArgumentMistake, match="should not be used in conjunction"):
        chosen(Entities((), ("::1",)), one, alter=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=1", {"a": "1"}),
        ("a=1,b=[x,y],c=3", {"a": "1", "b": "x,y", "c": "3"}),
        ("a = 1 , b=", {"a": "1", "b": ""}),
        ("a=[x=1,y=2]", {"a": "x=1,y=2"}),
    ],
)
def test_commas_in_brackets_do_not_split_values(text: str, found: dict[str, str]) -> None:
    assert parse_additions(text) == found


@given(strategies.text("a=,[] \n"))
def test_additions_are_split_as_by_pattern_of_kafka(text: str) -> None:
    outside_lists = r"(?=[^\]]*(?:\[|$))"
    pairs = [
        re.split(rf"\s*=\s*{outside_lists}", entry) for entry in re.split(f",{outside_lists}", text)
    ]
    try:
        found = parse_additions(text)
    except ArgumentMistake:
        assert any(len(pair) != 2 for pair in pairs)
    else:
        assert found == {
            name.strip(): re.sub(r"[\[\]]", "", value).strip() for name, value in pairs
        }


def test_work_of_splitting_grows_as_length(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0
    bracket = re.compile(r"[\[\]]")

    class CountingPattern:
        """Counts the characters that are searched."""

        sub = bracket.sub

        def search(self, text: str) -> re.Match[str] | None:
            nonlocal looked_at
            looked_at += len(text)
            return bracket.search(text)

    monkeypatch.setattr(arguments, "_BRACKET", CountingPattern())
    text = ",".join(f"k{number}=[1,2=3]" for number in range(1000))
    assert len(parse_additions(text)) == 1000
    assert looked_at <= 2 * len(text)  # Once for the commas, once for the equals signs.


@pytest.mark.parametrize("text", ["a", "a=1,b", "a=1=2", ""])
def test_added_config_without_key_and_value_is_rejected(text: str) -> None:
    with pytest.raises(ArgumentMistake, match="in the format key=val"):
        parse_additions(text)


def test_keys_to_delete_may_be_comma_separated() -> None:
    assert parse_deletions(["a, b", "c"]) == ["a", "b", "c"]


def test_config_key_with_invalid_character_is_rejected() -> None:
    check_keys(["max.connections", "a_b-C"])
    with pytest.raises(ArgumentMistake, match="Invalid character found for config key: a b"):
        check_keys(["a b"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100.0, "100.0"),
        (0.0, "0.0"),
        (0.5, "0.5"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (2147483647.0, "2.147483647E9"),
        (12345678.5, "1.23456785E7"),
        (0.0001, "1.0E-4"),
        (-1e7, "-1.0E7"),
    ],
)
def test_quota_is_formatted_like_java_double(value: float, text: str) -> None:
    assert quota_text(value) == text


@pytest.mark.parametrize("text", ["many", "", "nan", "inf", "1_000"])
def test_quota_that_is_no_java_double_is_rejected(text: str) -> None:
    assert parse_quota("producer_byte_rate", "1e3") == 1000
    with pytest.raises(ArgumentMistake, match="Cannot parse quota configuration value for k"):
        parse_quota("k", text)

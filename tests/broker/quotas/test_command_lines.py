"""Quotas as command lines and files: entities in both forms, and what cannot go together."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from hypothesis import given, strategies
from hypothesis import strategies as st

from minibroker.broker.quotas import command_lines
from minibroker.broker.quotas.command_lines import (
    CLIENTS,
    IPS,
    USERS,
    ArgumentMistake,
    Entities,
    IpRates,
    QuotaFileError,
    QuotaLine,
    can_be_written,
    check_keys,
    chosen,
    from_long_options,
    from_short_options,
    parse,
    parse_additions,
    parse_deletions,
    parse_quota,
    quota_text,
    render,
)
from minibroker.broker.quotas.types import DEFAULT, USER, Entity, QuotaTable, QuotaType

NOTHING = Entities((), ())
TYPE, NAME, ENTITY_DEFAULT = "entity_type", "entity_name", "entity_default"


def test_entity_names_are_matched_to_types_by_position() -> None:
    given = [(NAME, "A"), (TYPE, "users"), (ENTITY_DEFAULT, ""), (TYPE, "clients")]
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

    monkeypatch.setattr(command_lines, "_BRACKET", CountingPattern())
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


TEXT = """\
# measured in November

# p99 is 1 MiB/s
# and a fifth more
--alter --entity-type users --entity-name alice --add-config producer_byte_rate=1258291

--alter --user 'a b' --client-defaults --add-config request_percentage=12.5
--alter --entity-type clients --entity-default --add-config consumer_byte_rate=10
--entity-type=users --entity-default --entity-type=clients --entity-name=etl --delete-config \
controller_mutation_rate --alter
--alter --entity-type ips --entity-name ::ffff:10.0.0.1 --add-config connection_creation_rate=5
--alter --ip-defaults --add-config connection_creation_rate=50
"""


def test_quota_file_lines_have_entity_changes_and_reason() -> None:
    alice, both, default, loser, ip, ips = parse(TEXT, "f").lines
    assert alice.entities == ((USERS,), ("alice",))
    assert alice.additions == {"producer_byte_rate": 1258291}
    assert alice.reason == ("p99 is 1 MiB/s", "and a fifth more")
    assert alice.number == 5
    assert (both.entity, both.who) == (
        Entity("a%20b", DEFAULT),
        "user a b, the default of clients",
    )
    assert default.entity == Entity(client=DEFAULT)
    assert loser.deletions == ("controller_mutation_rate",)
    assert loser.entity == Entity(DEFAULT, "etl")
    assert (ip.is_of_ips, ip.who, ips.who) == (True, "ip ::ffff:10.0.0.1", "the default of ips")


def test_quota_file_is_converted_to_quota_table_and_ip_rates() -> None:
    before = QuotaTable().with_configs(
        {
            ("users", "<default>/clients/etl"): {"controller_mutation_rate": "3.0"},
            ("users", "alice"): {"request_percentage": "7.5", "producer_byte_rate": "1"},
        }
    )
    table = parse(TEXT, "f").table(before)
    assert table.bound(QuotaType.PRODUCE, Entity("alice")) == 1258291
    assert table.bound(QuotaType.REQUEST, Entity("alice")) == 7.5
    assert table.bound(QuotaType.FETCH, Entity(client=DEFAULT)) == 10
    assert table.bound(QuotaType.CONTROLLER_MUTATION, Entity(DEFAULT, "etl")) is None
    assert table.kinds == 7
    assert parse("--alter --user u --add-config request_percentage=1", "f").table().kinds == USER
    assert parse(TEXT, "f").ip_rates() == IpRates({"10.0.0.1": 5}, 50)
    gone = "--alter --ip {} --delete-config connection_creation_rate"
    without = parse(gone.format("10.0.0.1"), "f").ip_rates(IpRates({"10.0.0.1": 5, "::1": 2}, 50))
    assert without == IpRates({"::1": 2}, 50)
    all_gone = parse(gone.replace("--ip {}", "--ip-defaults"), "f")
    assert all_gone.ip_rates(IpRates({}, 50)) == IpRates({}, None)


def test_host_name_in_ip_rates_is_rejected() -> None:
    file = parse("--alter --ip some.host --add-config connection_creation_rate=5", "f")
    with pytest.raises(
        QuotaFileError, match=r"f:1: some\.host is not an IP address.*write the address"
    ):
        file.ip_rates()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--user u --add-config producer_byte_rate=1", "--alter is missing"),
        ("--alter --add-config producer_byte_rate=1", "At least one entity type"),
        ("--alter --user u", "--add-config or --delete-config is missing"),
        ("--alter --user u --add-config", "--add-config needs a value"),
        (
            "--alter --user u v --add-config a=1",
            "'v' belongs to no option: quote values that contain spaces",
        ),
        ("--alter --user u --user v --add-config a=1", "more than one of the users is named"),
        ("--alter --user u --user-defaults --add-config producer_byte_rate=1", "Duplicate entity"),
        ("--alter --user 'u", "No closing quotation"),
        ("--alter --user u --colour red", "--colour is not allowed in a quota file: use --add"),
        ("--alter -b x:1 --user u --add-config a=1", "-b is not allowed"),
        ("--describe --user u", "a quota file can only alter"),
        (
            "--alter --entity-type topics --entity-name t --add-config a=1",
            "topics cannot have quotas",
        ),
        ("--alter --entity-type users --add-config a=1", "add --entity-name NAME or --entity-def"),
        ("--alter --entity-type users --user u --add-config a=1", "in conjunction"),
        (
            "--alter --user u --add-config colour=1",
            "colour is not a quota of users: use producer_byte",
        ),
        (
            "--alter --ip 1.1.1.1 --add-config producer_byte_rate=1",
            "not a quota of ips: use connection_",
        ),
        ("--alter --user u --add-config producer_byte_rate=x", "Cannot parse quota"),
        ("--alter --user u --add-config producer_byte_rate=0", "=0: .*must be greater than 0"),
        ("--alter --user u --add-config producer_byte_rate", "in the format key=val"),
        ("--alter --user u --add-config a=1 --add-config b=1", "--add-config is given twice"),
        (
            "--alter --user u --add-config producer_byte_rate=1 --delete-config producer_byte_rate",
            "both added and deleted",
        ),
    ],
)
def test_invalid_line_is_rejected_with_its_number(line: str, reason: str) -> None:
    with pytest.raises(QuotaFileError, match=f"^quotas.txt:2: .*{reason}"):
        parse(f"# first\n{line}\n--nor this", "quotas.txt")


def _names() -> st.SearchStrategy[str]:
    return st.text(st.sampled_from("aB7-_.=,/[]'\"\\ \t#$*%~é漢\x85\u2028"), max_size=8)


def _lines() -> st.SearchStrategy[QuotaLine]:
    people = st.sampled_from([(USERS,), (CLIENTS,), (USERS, CLIENTS)]).flatmap(
        lambda kinds: st.builds(
            QuotaLine,
            st.tuples(*[_names() for _ in kinds]).map(lambda names: Entities(kinds, names)),
            st.fixed_dictionaries(
                {"producer_byte_rate": st.integers(1, 2**53).map(float)},
                optional={"request_percentage": st.floats(1e-9, 1e9)},
            ),
            st.sampled_from([(), ("consumer_byte_rate",)]),
            st.sampled_from([(), ("because", "of 1 %")]),
            st.just(0),
        )
    )
    ips = st.builds(
        QuotaLine,
        st.ip_addresses().map(lambda ip: Entities((IPS,), (str(ip),))),
        st.fixed_dictionaries({"connection_creation_rate": st.integers(0, 2**31 - 1).map(float)}),
        deletions=st.just(()),
        reason=st.just(()),
        number=st.just(0),
    )
    return people | ips


@given(st.lists(_lines()))
def test_quota_file_round_trips(lines: list[QuotaLine]) -> None:
    text = render(lines, ["what it is"])
    assert [line._replace(number=0) for line in parse(text, "f").lines] == lines


@pytest.mark.parametrize("name", ["it's", '"', "\\", "a  b", "--all", "$HOME", "#", "é", "*"])
def test_xargs_and_shell_split_a_line_alike(name: str) -> None:
    line = QuotaLine(Entities((USERS,), (name,)), {"producer_byte_rate": 1.0})
    text = render([line])
    command = ["xargs", "-L1", "printf", "%s\\n"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == shlex.split(text)


def test_empty_name_or_name_with_newline_cannot_be_written() -> None:
    assert not can_be_written("a\nb")
    assert not can_be_written("")
    assert can_be_written("a b")

"""Quota files: the meaning of lines, their errors, and that they are read as written."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.quotas.arguments import CLIENTS, IPS, USERS, Entities
from minibroker.broker.quotas.entity import DEFAULT, USER, Entity, QuotaTable
from minibroker.broker.quotas.file import (
    IpRates,
    QuotaFileError,
    QuotaLine,
    can_be_written,
    parse,
    render,
)
from minibroker.broker.quotas.types import QuotaType

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

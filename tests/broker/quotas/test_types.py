"""The table of quota types has a row for each, and values are checked by its columns."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.metrics.definitions import METRICS
from minibroker.broker.quotas.types import (
    CLIENT,
    CLIENT_QUOTA_TYPES,
    CONNECTION_CREATION_RATE,
    DEFAULT,
    USER,
    USER_AND_CLIENT,
    Bound,
    Entity,
    QuotaTable,
    QuotaType,
    Tags,
    bound_of,
    desanitize,
    is_quota,
    levels,
    limit_text,
    measured_text,
    parse_entity,
    sanitize,
    sharing_group,
    value_problem,
    value_text,
)
from minibroker.broker.settings import Settings
from minibroker.lab.activity.events import FIELDS, ActivityType


def test_quota_type_added_as_row_is_altered_described_recorded_enforced_and_explained() -> None:
    subprocess.run([sys.executable, "-m", "tests.broker.quotas.toy_type"], check=True)


def test_quota_types_have_unique_names() -> None:
    for column in ("config_key", "control_name", "short_name"):
        assert len({getattr(kind.row, column) for kind in QuotaType}) == len(QuotaType)


def test_client_quota_types_name_existing_metrics_settings_and_activity_fields() -> None:
    gauges = {each.name for each in METRICS}
    checks = [field.name for field in FIELDS if field.type is ActivityType.CHECK]
    fields = [kind.row.check_field for kind in CLIENT_QUOTA_TYPES]
    assert [field for field in fields if field] == checks
    for kind in CLIENT_QUOTA_TYPES:
        assert kind.row.metric in gauges
        if kind.row.default_setting:
            assert Settings.from_entries([]).text(kind.row.default_setting) is not None


def test_connection_creation_rate_is_quota_of_ips_only() -> None:
    assert is_quota(CONNECTION_CREATION_RATE, of_ip=True)
    assert not is_quota(CONNECTION_CREATION_RATE, of_ip=False)
    assert is_quota("request_percentage", of_ip=False)
    assert not is_quota("request_percentage", of_ip=True)


@pytest.mark.parametrize(
    ("key", "value", "explanation"),
    [
        (CONNECTION_CREATION_RATE, 0.0, None),
        (CONNECTION_CREATION_RATE, -1.0, "must be 0 or more"),
        (CONNECTION_CREATION_RATE, 2.0**31, "too large for an INT"),
        ("producer_byte_rate", 0.0, "must be greater than 0"),
        ("producer_byte_rate", 1e-7, "must be greater than 0"),
        ("producer_byte_rate", 1.0000001, None),
        ("producer_byte_rate", 1.5, "cannot be a fractional value"),
        ("consumer_byte_rate", 1e19, "too large for a LONG"),
        ("request_percentage", 0.01, None),
        ("controller_mutation_rate", float("nan"), "must be greater than 0"),
    ],
)
def test_invalid_quota_value_has_explanation(
    key: str, value: float, explanation: str | None
) -> None:
    problem = value_problem(key, value)
    assert (
        problem is None if explanation is None else problem is not None and explanation in problem
    )


def test_whole_byte_rates_are_formatted_without_decimals() -> None:
    assert value_text("producer_byte_rate", 2.0**63) == str(2**63 - 1)
    assert value_text("producer_byte_rate", 1e6) == "1000000"
    assert value_text("request_percentage", 12.0) == "12.0"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1048576.0, "1048576"), (12.5, "12.5"), (0.001, "0.001"), (2.0**63, "9223372036854775808")],
)
def test_limit_text_has_every_configured_digit(value: float, text: str) -> None:
    assert limit_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(60073.94268, "60074"), (99.449, "99.4"), (0.031269, "0.0313"), (0.0, "0"), (-80.0, "-80")],
)
def test_measured_text_is_rounded_to_significant_digits(value: float, text: str) -> None:
    assert measured_text(value) == text


PRODUCE = QuotaType.PRODUCE
MIXED = CLIENT | USER | USER_AND_CLIENT
BOTH, OF_USER, OF_CLIENT = Tags("u", "c"), Tags("u", ""), Tags("", "c")
LEVELS = [
    (Entity("u", "c"), BOTH),
    (Entity("u", DEFAULT), BOTH),
    (Entity("u"), OF_USER),
    (Entity(DEFAULT, "c"), BOTH),
    (Entity(DEFAULT, DEFAULT), BOTH),
    (Entity(DEFAULT), OF_USER),
    (Entity(client="c"), OF_CLIENT),
    (Entity(client=DEFAULT), OF_CLIENT),
]


def table(*entities: Entity, defaults: float | None = None) -> QuotaTable:
    """Each entity's bound is its place in the list, from 1 on."""
    bounds = {entity: float(number) for number, entity in enumerate(entities, 1)}
    static = {} if defaults is None else {PRODUCE: defaults}
    kinds = 0
    for entity in entities:
        kinds |= entity.bit
    return QuotaTable({PRODUCE: bounds}, kinds, static)


@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_most_specific_level_with_quota_wins(first: int) -> None:
    entity, tags = LEVELS[first]
    found = table(*(entity for entity, _ in LEVELS[first:]))
    assert sharing_group(found, PRODUCE, MIXED, "u", "c") == tags
    assert bound_of(found, PRODUCE, tags) == Bound(1.0, entity)


@pytest.mark.parametrize("chosen", list(itertools.combinations(range(8), 3)))
def test_most_specific_level_wins_for_any_set_of_quotas(chosen: tuple[int, ...]) -> None:
    found = table(*(LEVELS[index][0] for index in chosen))
    tags = sharing_group(found, PRODUCE, MIXED, "u", "c")
    assert tags == LEVELS[chosen[0]][1]
    assert bound_of(found, PRODUCE, tags) == Bound(1.0, LEVELS[chosen[0]][0])


def test_quotas_of_other_entities_have_no_effect() -> None:
    decoys = (Entity("v", "c"), Entity("v"), Entity("u", "d"), Entity(client="d"))
    found = table(*decoys)
    assert sharing_group(found, PRODUCE, MIXED, "u", "c") == OF_CLIENT
    assert bound_of(found, PRODUCE, OF_CLIENT) is None
    assert [level.entity for level in levels("u", "c")] == [entity for entity, _ in LEVELS]


@pytest.mark.parametrize(
    ("bits", "tags"),
    [(0, OF_CLIENT), (CLIENT, OF_CLIENT), (USER, OF_USER), (USER_AND_CLIENT, BOTH)],
)
def test_entity_kind_ever_set_determines_sharing(bits: int, tags: Tags) -> None:
    # Even with none left: the kinds that ever were are what counts.
    assert sharing_group(table(), PRODUCE, bits, "u", "c") == tags
    assert bound_of(table(), PRODUCE, tags) is None


def test_quota_table_reports_entity_kinds() -> None:
    assert table().bits(PRODUCE) == 0
    assert table(defaults=5).bits(PRODUCE) == CLIENT
    assert table(defaults=5).bits(QuotaType.FETCH) == 0
    for entity, bits in ((Entity("u"), USER), (Entity("u", "c"), 4), (Entity(client="c"), CLIENT)):
        assert table(entity).bits(PRODUCE) == table(entity).bits(QuotaType.REQUEST) == bits
    assert table(*(entity for entity, _ in LEVELS)).bits(PRODUCE) == MIXED


def test_deprecated_default_applies_after_all_client_id_quotas() -> None:
    alone = table(defaults=9.0)
    assert sharing_group(alone, PRODUCE, CLIENT, "u", "c") == OF_CLIENT
    assert bound_of(alone, PRODUCE, OF_CLIENT) == Bound(9.0, None)
    assert bound_of(alone, QuotaType.FETCH, OF_CLIENT) is None
    beside = table(Entity(client=DEFAULT), defaults=9.0)
    assert bound_of(beside, PRODUCE, OF_CLIENT) == Bound(1.0, Entity(client=DEFAULT))
    of_default_user = table(Entity(DEFAULT), defaults=9.0)
    assert sharing_group(of_default_user, PRODUCE, USER | CLIENT, "u", "c") == OF_USER
    assert bound_of(alone, PRODUCE, OF_USER) is None


def test_empty_client_id_matches_no_client_id_quota() -> None:
    assert bound_of(table(Entity(client=DEFAULT), defaults=9.0), PRODUCE, Tags("", "")) is None
    of_user = table(Entity("u", DEFAULT), Entity("u"))
    tags = sharing_group(of_user, PRODUCE, MIXED, "u", "")
    assert tags == OF_USER
    assert bound_of(of_user, PRODUCE, tags) == Bound(2.0, Entity("u"))


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("CN=a b,O=ü/x", "CN%3Da%20b%2CO%3D%C3%BC%2Fx"),
        ("a.b-c_d~*+", "a.b-c_d%7E%2A%2B"),
        ("<default>", "%3Cdefault%3E"),
        ("...", "..."),
    ],
)
def test_sanitize_matches_kafka(name: str, encoded: str) -> None:
    assert sanitize(name) == encoded
    assert desanitize(encoded) == name


@pytest.mark.parametrize(("name", "encoded"), [(".", "%2E"), ("..", "%2E%2E")])
def test_sanitize_encodes_name_that_is_no_path_segment(name: str, encoded: str) -> None:
    assert sanitize(name) == encoded
    assert desanitize(encoded) == name


def test_desanitize_decodes_plus_as_space() -> None:
    assert desanitize("a+b") == "a b"


@given(st.text())
def test_sanitize_round_trips_any_name(name: str) -> None:
    assert desanitize(sanitize(name)) == name
    assert "/" not in sanitize(name)


@pytest.mark.parametrize(
    ("kind", "name", "entity"),
    [
        ("users", "u", Entity("u")),
        ("users", "u/clients/c", Entity("u", "c")),
        ("users", "<default>/clients/<default>", Entity(DEFAULT, DEFAULT)),
        ("clients", "c", Entity(client="c")),
        ("clients", "c/d", None),
        ("users", "u/clients/", None),
        ("users", "u/other/c", None),
        ("ips", "1.2.3.4", None),
    ],
)
def test_entity_is_parsed_from_its_config_path(kind: str, name: str, entity: Entity | None) -> None:
    assert parse_entity(kind, name) == entity
    if entity is not None:
        assert entity.path == f"{kind}/{name}"


def test_quota_table_ignores_other_configs() -> None:
    configs = {
        ("users", "u"): {"producer_byte_rate": "5", "SCRAM-SHA-256": "x"},
        ("users", "v/clients/c"): {"SCRAM-SHA-256": "x"},
        ("clients", "c"): {"request_percentage": "0.5"},
        ("topics", "t"): {"retention.ms": "5"},
    }
    empty = QuotaTable(defaults={QuotaType.FETCH: 7.0})
    found = empty.with_configs(configs)
    assert found.kinds == USER | CLIENT
    assert found.bound(PRODUCE, Entity("u")) == 5.0
    assert found.bound(QuotaType.REQUEST, Entity(client="c")) == 0.5
    assert found.defaults == {QuotaType.FETCH: 7.0}
    later = found.with_configs({("users", "u"): {}, ("clients", "c"): {"request_percentage": "2"}})
    assert later.bound(PRODUCE, Entity("u")) is None
    assert later.bound(QuotaType.REQUEST, Entity(client="c")) == 2.0
    assert later.kinds == USER | CLIENT
    assert found.bound(PRODUCE, Entity("u")) == 5.0
    assert empty.bound(PRODUCE, Entity("u")) is None

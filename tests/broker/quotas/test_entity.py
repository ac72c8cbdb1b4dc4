"""The quota of a request: eight levels, the deprecated defaults, and shared counters."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.quotas.entity import (
    CLIENT,
    DEFAULT,
    USER,
    USER_AND_CLIENT,
    Bound,
    Entity,
    QuotaTable,
    Tags,
    bound_of,
    desanitize,
    levels,
    parse_entity,
    sanitize,
    sharing_group,
)
from minibroker.broker.quotas.types import QuotaType

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

"""A persona narrows the registry: the property is tested for every persona and any other one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.apis.registry import APIS, advertised
from minibroker.broker.apis.serving import narrowed, serving
from minibroker.broker.settings import Settings
from minibroker.broker.settings.persona import Persona, VersionRange
from minibroker.lab.personas.persona import NAMES, load
from minibroker_protocol.registry import ApiKey

RANGES = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(
    lambda pair: VersionRange(*sorted(pair))
)


def personas() -> st.SearchStrategy[Persona]:
    """The recorded personas, and ones of any versions."""
    any_versions = st.dictionaries(st.sampled_from([*APIS, 99]), RANGES).map(
        lambda versions: load("kafka-2.8")._replace(versions=versions)
    )
    return st.sampled_from(NAMES).map(load) | any_versions


@given(personas(), st.sampled_from(sorted(APIS)), st.integers(-1, 25))
def test_version_is_served_if_registry_and_persona_have_it(
    persona: Persona, key: int, version: int
) -> None:
    theirs = persona.versions.get(key, VersionRange(1, 0))
    wanted = APIS[key].serves(version) and theirs.low <= version <= theirs.high
    found = narrowed(APIS, persona).get(key)
    assert (found is not None and found.serves(version)) == wanted


@given(personas())
def test_listed_versions_are_within_both_and_some_of_them_are_served(persona: Persona) -> None:
    for key, api in narrowed(APIS, persona).items():
        low, high = api.versions
        assert low >= max(APIS[key].versions[0], persona.versions[key].low)
        assert high == min(APIS[key].versions[1], persona.versions[key].high)
        assert api.serves(high)
        assert api.execute is APIS[key].execute


def test_without_a_persona_the_registry_itself_is_served() -> None:
    settings = Settings.from_sources()
    assert serving(settings).apis is APIS
    assert serving(settings).advertised == advertised(settings)


def test_controller_requests_are_listed_if_the_persona_has_them() -> None:
    for name, listed in (("kafka-2.8", True), ("kafka-3.9", False)):
        found = serving(Settings.from_sources(pairs=[f"persona={name}"]))
        assert (ApiKey.LEADER_AND_ISR in found.advertised) == listed
        assert set(found.advertised) == set(found.apis)


def test_old_versions_of_produce_are_listed_but_not_served() -> None:
    produce = serving(Settings.from_sources(pairs=["persona=kafka-0.11"])).apis[ApiKey.PRODUCE]
    assert produce.versions == (0, 3)
    assert [version for version in range(5) if produce.serves(version)] == [3]

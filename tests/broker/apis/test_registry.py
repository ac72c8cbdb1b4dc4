"""Every served API is declared, and each once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minibroker.broker.apis import metadata, produce
from minibroker.broker.apis.registry import APIS, advertised, collect
from minibroker.broker.settings import Settings
from minibroker_protocol.registry import ApiKey, schema


@pytest.mark.parametrize("versions", [(0, 99), (-1, 3)])
def test_api_versions_not_declared_by_protocol_are_rejected(
    versions: tuple[int, int],
) -> None:
    api = replace(metadata.API, versions=versions)
    with pytest.raises(ValueError, match=r"METADATA serves versions .*, the protocol declares"):
        collect([api])


def test_served_versions_must_be_declared_and_advertised_ones_need_not() -> None:
    assert list(collect([produce.API])) == [ApiKey.PRODUCE]
    with pytest.raises(ValueError, match="PRODUCE serves versions 2 to 13"):
        collect([replace(produce.API, served_from=2)])
    with pytest.raises(ValueError, match="PRODUCE serves versions 0 to 13"):
        collect([replace(produce.API, served_from=None)])


def test_api_registered_twice_is_rejected() -> None:
    with pytest.raises(ValueError, match="METADATA is served twice"):
        collect([metadata.API, metadata.API])


@pytest.mark.parametrize("key", sorted(APIS), ids=lambda key: APIS[key].key.name)
def test_api_is_found_by_key_and_lists_unsupported_features(key: int) -> None:
    api = APIS[key]
    assert api.key == key
    assert schema(key).key is api.key
    assert all(text and text[0].islower() for text in api.left_out)


@pytest.mark.parametrize(
    ("pair", "listed"),
    [
        ("num.partitions=1", set()),
        ("zookeeper.connect=localhost:2181", {4, 5, 6, 7}),
        ("advertise.controller.requests=true", {4, 5, 6, 7}),
    ],
)
def test_controller_requests_are_advertised_only_for_other_controllers(
    pair: str, listed: set[int]
) -> None:
    served = advertised(Settings.from_sources(pairs=[pair]))
    assert {int(key) for key in served if 4 <= key <= 7} == listed
    assert APIS.keys() - served.keys() == {4, 5, 6, 7} - listed
    assert all(versions == APIS[key].versions for key, versions in served.items())

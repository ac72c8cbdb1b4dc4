"""Every served API is declared, and each once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minibroker.apis import metadata, produce
from minibroker.apis.registry import APIS, collect
from protocol.registry import ApiKey, schema


@pytest.mark.parametrize("versions", [(0, 99), (-1, 3)])
def test_versions_that_the_protocol_does_not_declare_are_refused(
    versions: tuple[int, int],
) -> None:
    api = replace(metadata.API, versions=versions)
    with pytest.raises(ValueError, match=r"METADATA serves versions .*, the protocol declares"):
        collect([api])


def test_what_is_advertised_only_need_not_be_declared_but_what_is_served() -> None:
    assert list(collect([produce.API])) == [ApiKey.PRODUCE]
    with pytest.raises(ValueError, match="PRODUCE serves versions 2 to 13"):
        collect([replace(produce.API, served_from=2)])
    with pytest.raises(ValueError, match="PRODUCE serves versions 0 to 13"):
        collect([replace(produce.API, served_from=None)])


def test_an_api_that_is_served_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="METADATA is served twice"):
        collect([metadata.API, metadata.API])


@pytest.mark.parametrize("key", sorted(APIS), ids=lambda key: APIS[key].key.name)
def test_each_is_found_by_its_key_and_says_what_it_leaves_out(key: int) -> None:
    api = APIS[key]
    assert api.key == key
    assert schema(key).key is api.key
    assert all(text and text[0].islower() for text in api.left_out)

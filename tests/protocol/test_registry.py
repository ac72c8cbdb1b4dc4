"""The registry finds every API, and loads none before its first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from minibroker_protocol.errors import UnsupportedVersion
from minibroker_protocol.registry import ApiKey, schema


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_request_and_response_have_same_key_and_versions(key: ApiKey) -> None:
    api = schema(key)
    assert api.request.__api_key__ == api.response.__api_key__ == key
    assert api.request.__versions__ == api.response.__versions__ == api.valid_versions
    assert api.request.__flexible__ == api.response.__flexible__
    assert (api.request.__name__, api.response.__name__) == (
        f"{api.name}Request",
        f"{api.name}Response",
    )
    assert schema(int(key)) == api


@pytest.mark.parametrize("key", [-1, 94, 999])
def test_unknown_api_key_is_unsupported(key: int) -> None:
    with pytest.raises(UnsupportedVersion, match=f"no API has the key {key}"):
        schema(key)


def test_header_version_depends_on_flexible_encoding() -> None:
    metadata, versions = schema(ApiKey.METADATA), schema(ApiKey.API_VERSIONS)
    assert [metadata.request_header_version(v) for v in (8, 9)] == [1, 2]
    assert [metadata.response_header_version(v) for v in (8, 9)] == [0, 1]
    shutdown = schema(ApiKey.CONTROLLED_SHUTDOWN)
    assert [shutdown.request_header_version(v) for v in range(4)] == [0, 1, 1, 2]
    assert [shutdown.response_header_version(v) for v in range(4)] == [0, 0, 0, 1]
    assert [versions.request_header_version(v) for v in (2, 3)] == [1, 2]
    assert [versions.response_header_version(v) for v in (2, 3, 4)] == [0, 0, 0]


def test_registry_import_loads_no_messages() -> None:
    code = (
        "import sys, minibroker_protocol.registry as r\n"
        "loaded = [m for m in sys.modules if m.startswith('minibroker_protocol.messages.')]\n"
        "assert not loaded, loaded\n"
        "r.schema(r.ApiKey.PRODUCE)\n"
        "loaded = [m for m in sys.modules if m.startswith('minibroker_protocol.messages.')]\n"
        "assert loaded == ['minibroker_protocol.messages.produce'], loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""A refused request is explained by the protocol to which it belongs."""

from __future__ import annotations

import pytest

from minibroker.broker.apis.unserved import (
    COMPARE_VERSIONS,
    CONSUMER_GROUPS,
    SHARE_GROUPS,
    STREAMS_GROUPS,
    TOPOLOGY_DESCRIPTIONS,
    Unserved,
    unserved_request,
)
from minibroker_protocol.registry import ApiKey


@pytest.mark.parametrize(
    ("key", "protocol"),
    [
        (ApiKey.CONSUMER_GROUP_DESCRIBE, CONSUMER_GROUPS),
        (ApiKey.SHARE_FETCH, SHARE_GROUPS),
        (ApiKey.STREAMS_GROUP_HEARTBEAT, STREAMS_GROUPS),
        (ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, TOPOLOGY_DESCRIPTIONS),
    ],
)
def test_unserved_request_of_known_protocol_names_it(key: ApiKey, protocol: Unserved) -> None:
    assert unserved_request(key, "VOTE is not served") == protocol


@pytest.mark.parametrize("key", [ApiKey.VOTE, ApiKey.FETCH, None])
def test_unserved_request_of_unknown_protocol_keeps_the_problem(key: ApiKey | None) -> None:
    found = unserved_request(key, "version 99 is not served")
    assert found == ("version 99 is not served", COMPARE_VERSIONS)

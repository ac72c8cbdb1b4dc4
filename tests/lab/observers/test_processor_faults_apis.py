"""Errors before the work in every API and version, over a real socket."""

from __future__ import annotations

from minibroker.testing import MiniBroker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Struct
from tests.broker.network.raw_client import RawClient
from tests.lab.faults.messages import request_of, served_versions

CODE = int(ErrorCode.POLICY_VIOLATION)


def codes_in(struct: Struct) -> set[int]:
    """All error codes of a response."""
    found: set[int] = set()
    for item in type(struct).__fields__:
        value = getattr(struct, item.name)
        if item.name in {"error_code", "partition_error_code"}:
            found.add(value)
        elif isinstance(item.kind, Array):
            found.update(*(codes_in(each) for each in value or () if isinstance(each, Struct)))
    return found


def test_every_api_and_version_answers_with_the_error_of_a_rule() -> None:
    answered = 0
    with MiniBroker() as broker, broker.faults as faults:
        rule = faults.add("error", error="POLICY_VIOLATION")
        with RawClient(broker.bootstrap_servers) as client:
            for key, version in served_versions():
                if key == ApiKey.DESCRIBE_LOG_DIRS and version < 3:
                    continue  # It has an error for each directory, and no request names one.
                request = request_of(key, version)
                if isinstance(request, ProduceRequest):
                    request.acks = 1
                assert CODE in codes_in(client.ask(request, version)), (key.name, version)
                answered += 1
        assert rule.hits == answered
        assert "Traceback" not in broker.log()

"""The definition of a rule is complete and can be described."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from minibroker.lab.faults.actions import Delay, Error, Hold, Observe, api_of, error_of
from minibroker.lab.faults.fault_rule import (
    ActiveRule,
    FaultHold,
    FaultRule,
    FaultView,
    check_rule,
    is_in_network,
)
from minibroker.lab.schema import InvalidJson, component, parse, to_json
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.registry import ApiKey
from tests.lab.faults.messages import SERVED
from tests.lab.faults.strategies import rules, wrong_rules


def test_every_field_of_a_rule_is_described_and_optional_but_the_action() -> None:
    schema = component(FaultRule)
    assert schema["required"] == ["action"]
    assert all(field["description"] for field in schema["properties"].values())
    assert schema["additionalProperties"] is False


def test_view_is_written_with_the_fields_that_were_given() -> None:
    view = FaultView("1", {"action": "hold"}, 3, 2, 1, (FaultHold("worker-0", group="g"),), 10)
    assert to_json(view) == {
        "id": "1",
        "rule": {"action": "hold"},
        "matches": 3,
        "hits": 2,
        "held": 1,
        "holds": [
            {**dict.fromkeys(FaultHold._fields), "process": "worker-0", "group": "g"},
        ],
        "age_ms": 10,
    }


def checked(rule: dict[str, Any]) -> FaultRule:
    parsed = parse(FaultRule, rule)
    check_rule(parsed, SERVED)
    return parsed


def faults(rule: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidJson) as caught:
        checked(rule)
    return {fault.path: fault.message for fault in caught.value.faults}


@given(rules())
def test_any_valid_rule_is_accepted_and_shown_as_it_was(rule: dict[str, Any]) -> None:
    parsed = checked(rule)
    assert parsed.given == rule


@given(wrong_rules())
def test_any_wrong_field_is_rejected_by_its_name(drawn: tuple[dict[str, Any], str]) -> None:
    rule, wrong = drawn
    assert wrong in faults(rule)


@pytest.mark.parametrize(
    ("rule", "path", "message"),
    [
        ({"action": "error"}, "error", "is missing: the action error needs it"),
        ({"action": "delay", "error": "NONE", "delay_ms": 1}, "error", "does not belong"),
        ({"action": "refuse", "topic": "t"}, "topic", "cannot select for the action refuse"),
        ({"action": "delay", "delay_ms": 1, "at": "middle"}, "at", "must be after or before"),
        ({"action": "observe", "first": 1, "nth": 2}, "nth", "excludes first"),
        ({"action": "observe", "seed": 1}, "seed", "no effect without probability"),
        ({"action": "disconnect", "bytes": 5}, "bytes", "no effect"),
        ({"action": "corrupt", "part": "length", "bytes": 5}, "bytes", "no effect"),
        ({"action": "corrupt", "part": "crc", "api": "Produce"}, "part", "record batches"),
        ({"action": "replace", "response": {}}, "api", "is missing"),
        ({"action": "observe", "version_min": 1}, "api", "is missing: version_min"),
        (
            {"action": "hold", "point": "transaction.prepared", "group": "g"},
            "group",
            "cannot select at the point transaction.prepared",
        ),
        ({"action": "hold", "point": "fetch.waiting", "at": "after"}, "at", "no effect at a hold"),
        ({"action": "delay", "delay_ms": 1, "point": "fetch.waiting"}, "point", "does not belong"),
        (
            {"action": "observe", "api": "Fetch", "version_min": 4, "version_max": 3},
            "version_max",
            "less than version_min",
        ),
        ({"action": "observe", "after_ms": 5, "until_ms": 5}, "until_ms", "greater than"),
        ({"action": "observe", "api": "Heartbeat", "topic": "t"}, "topic", "have no topic"),
        ({"action": "observe", "api": "prduce"}, "api", "did you mean 'PRODUCE'?"),
        ({"action": "error", "error": "NOT_CORDINATOR"}, "error", "did you mean 'NOT_COORDI"),
        ({"action": "observe", "api": "Vote"}, "api", "not served"),
        ({"action": "observe", "probability": 0}, "probability", "never fires"),
        ({"action": "close", "after_ms": 5}, "after_ms", "when the rule is added"),
        ({"action": "delay", "delay_ms": 0}, "delay_ms", "must be"),
        ({"action": "throttle", "throttle_ms": 0}, "throttle_ms", "must be"),
        ({"action": "advance", "advance_ms": 0}, "advance_ms", "must be"),
        ({"action": "stall_append", "pause_ms": 0}, "pause_ms", "must be"),
        ({"action": "corrupt", "part": "truncate", "bytes": 0}, "bytes", "nothing is cut"),
        ({"action": "replace", "api": "Fetch", "response": {}}, "response", "nothing is replaced"),
        (
            {"action": "replace", "api": "Fetch", "version_max": 6, "response": {"session_id": 1}},
            "response.session_id",
            "is in responses of FETCH from version 7 on",
        ),
        (
            {
                "action": "replace",
                "api": "JoinGroup",
                "version_max": 5,
                "response": {"protocol_name": None},
            },
            "response",
            "cannot be encoded in version 5 of JOIN_GROUP",
        ),
        (
            {"action": "observe", "api": "Metadata", "version_min": 99},
            "version_min",
            "METADATA is served in versions 0 to 13",
        ),
        (
            {"action": "observe", "api": "Fetch", "version_max": 3},
            "version_max",
            "FETCH is served in versions 4 to",
        ),
        (
            {"action": "observe", "api": "Metadata", "version_max": 9, "topic_id": "A" * 22},
            "topic_id",
            "have no topic_id in these versions",
        ),
        (
            {"action": "throttle", "api": "SaslHandshake", "throttle_ms": 5},
            "api",
            "responses of SASL_HANDSHAKE have no throttle time; the action delay",
        ),
        (
            {
                "action": "throttle",
                "api": "Metadata",
                "version_max": 2,
                "throttle_ms": 5,
                "mute": False,
            },
            "mute",
            "responses of METADATA have a throttle time from version 3 on",
        ),
        (
            {"action": "corrupt", "api": "Metadata", "version_max": 8, "part": "tagged_field"},
            "part",
            "responses of METADATA have tagged fields from version 9 on",
        ),
        (
            {"action": "corrupt", "api": "SaslHandshake", "part": "tagged_field"},
            "part",
            "responses of SASL_HANDSHAKE have tagged fields in no version",
        ),
        (
            {"action": "observe", "api": "Produce", "namespace": "ns"},
            "namespace",
            "has no effect without topic, group, transactional_id or resource",
        ),
        (
            {"action": "replace", "api": "Metadata", "response": {"topics": 1}},
            "response.topics",
            "must be a list",
        ),
    ],
)
def test_impossible_combination_is_rejected(rule: dict[str, Any], path: str, message: str) -> None:
    found = faults(rule)
    assert message in found[path]


def test_rule_that_can_act_in_one_version_is_accepted() -> None:
    checked({"action": "corrupt", "api": "Metadata", "part": "tagged_field"})
    checked({"action": "throttle", "api": "Metadata", "throttle_ms": 5, "mute": False})
    checked({"action": "throttle", "api": "Metadata", "version_max": 2, "throttle_ms": 5})
    checked({"action": "replace", "api": "Fetch", "at": "before", "response": {}})


def test_apis_and_errors_have_several_spellings() -> None:
    for text in ("Produce", "PRODUCE", "produce", "0"):
        assert api_of(text) is ApiKey.PRODUCE
    assert api_of("offset-fetch") is ApiKey.OFFSET_FETCH
    assert api_of("94") is api_of("") is api_of("9999999") is None
    for text in ("NOT_COORDINATOR", "notCoordinator", "16"):
        assert error_of(text) == ErrorCode.NOT_COORDINATOR
    assert error_of("-1") == ErrorCode.UNKNOWN_SERVER_ERROR
    assert error_of("x") is None


def test_addresses_are_compared_as_networks() -> None:
    assert is_in_network("10.1.2.3", "10.0.0.0/8")
    assert is_in_network("::1", "::1")
    assert not is_in_network("::1", "0.0.0.0/0")
    assert not is_in_network("", "10.0.0.0/8")


def test_rule_has_the_default_place_of_its_action() -> None:
    assert ActiveRule("1", FaultRule(Delay(delay_ms=1))).place == "after"
    assert ActiveRule("1", FaultRule(Error(error="NONE"))).place == "before"
    assert ActiveRule("1", FaultRule(Error(error="NONE", at="after"))).place == "after"
    assert ActiveRule("1", FaultRule(Hold(point="fetch.waiting"))).place == "waiting"


def test_rule_with_a_point_selects_its_api_or_none() -> None:
    assert FaultRule(Hold(point="fetch.waiting")).selected_api is ApiKey.FETCH
    assert FaultRule(Hold(point="controller.applied")).selected_api is None
    assert FaultRule(Hold(), api="Fetch").selected_api is ApiKey.FETCH
    assert FaultRule(Hold(point="fetch.waiting")).is_about_requests
    assert not FaultRule(Hold(point="controller.applied")).is_about_requests


def test_hold_is_shown_with_the_names_of_its_namespace() -> None:
    hold = FaultHold("worker-0", "Produce", topic="ns.orders", partition=1, group="other")
    shown = hold.in_namespace("ns")
    assert shown == FaultHold("worker-0", "Produce", topic="orders", partition=1, group="other")


def test_keys_of_selectors_are_known() -> None:
    rule = FaultRule(Observe(), topic="t", partition=0, client_id="c")
    assert rule.selected_keys == {Meaning.TOPIC, Meaning.PARTITION}

"""The definition of a rule is complete and can be described."""

from __future__ import annotations

from minibroker.lab.faults.fault_rule import FaultHold, FaultRule, FaultView
from minibroker.lab.schema import component, to_json


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

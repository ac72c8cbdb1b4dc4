"""Valid rules drawn at random, and what makes each of them invalid."""

from __future__ import annotations

from typing import Any, Final, get_args

from hypothesis import strategies as st

from minibroker.broker.apis.registry import APIS
from minibroker.lab.faults.actions import ACTIONS
from minibroker.lab.faults.fault_rule import CountedPer
from minibroker.lab.faults.places import ENTITY_FIELDS, POINTS
from minibroker.lab.schema import record_fields
from minibroker_protocol import registry
from minibroker_protocol.entities import selectable
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import uuid_text
from tests.lab.faults.messages import SERVED

PER: Final = frozenset(get_args(CountedPer))
KEYS: Final = sorted(map(ApiKey, APIS))
_flags: Final = st.booleans()
_texts: Final = st.text("ab*", min_size=1, max_size=3)

_SELECTORS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "client_id": _texts,
    "principal": st.sampled_from(["User:*", "User:ANONYMOUS", "User:alice"]),
    "connection": st.integers(1, 3),
    "address": st.sampled_from(["127.0.0.1", "127.0.0.0/8", "10.0.0.0/8", "::1"]),
    "listener": st.sampled_from(["PLAINTEXT", "OTHER"]),
    "correlation_id": st.integers(0, 2),
    "topic": st.sampled_from(["n4", "n5", "n*", "other"]),
    "topic_id": st.integers(1, 6).map(lambda number: uuid_text(number.to_bytes(16, "big"))),
    "partition": st.integers(0, 12),
    "group": st.sampled_from(["n1", "*", "other"]),
    "member": st.sampled_from(["n1", "*", "other"]),
    "transactional_id": st.sampled_from(["n1", "*", "other"]),
    "resource": st.sampled_from(["n4", "*", "other"]),
}
_WHEN: Final[dict[str, st.SearchStrategy[Any]]] = {
    "first": st.integers(1, 3),
    "nth": st.integers(1, 3),
    "every": st.integers(1, 3),
    "probability": st.floats(0, 1, exclude_min=True),
}
_OPTIONS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "error": st.sampled_from([*ErrorCode.__members__, "-1", "16", "notCoordinator"]),
    "whole": st.booleans(),
    "delay_ms": st.integers(1, 1000),
    "throttle_ms": st.integers(1, 1000),
    "bytes_per_s": st.integers(1, 1000),
    "process": st.just("worker-0"),
    "pause_ms": st.integers(1, 1000),
    "advance_ms": st.integers(1, 1000),
    "mute": st.booleans(),
    "point": st.sampled_from(list(POINTS)),
    "reset": st.booleans(),
    "errno": st.sampled_from(["ENOSPC", "EIO"]),
    "crash": st.booleans(),
    "part": st.sampled_from(["bit", "length", "correlation_id", "tagged_field", "truncate"]),
    "response": st.just({"throttle_time_ms": 7}),
    "fields": st.just({"throttle_time_ms": 7}),
    "jitter_ms": st.integers(1, 1000),
    "distribution": st.sampled_from(["uniform", "exponential", "normal"]),
    "adds": st.booleans(),
}


def _spelled(draw: st.DrawFn, key: ApiKey) -> str:
    camel = "".join(word.capitalize() for word in key.name.split("_"))
    return draw(st.sampled_from([key.name, camel, key.name.lower(), str(int(key))]))


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    """A valid rule as JSON."""
    action = draw(st.sampled_from(list(ACTIONS)))
    kind = ACTIONS[action]
    fields = record_fields(kind)
    rule: dict[str, Any] = {"action": action}
    names: list[str] = [name for name in kind.selectors if name in _SELECTORS]
    if "point" in fields and draw(_flags):
        rule["point"] = draw(_OPTIONS["point"])
        names = list(POINTS[rule["point"]].selectors)
    elif "api" in kind.selectors and (action in ("replace", "patch") or draw(_flags)):
        key = draw(st.sampled_from(KEYS))
        if _effective_from(key) is None:
            key = ApiKey.HEARTBEAT
        rule["api"] = _spelled(draw, key)
        low, high = SERVED[key]
        if draw(_flags):
            low = draw(st.integers(low, high))
            needed = max(low, _effective_from(key) or 0)
            high = draw(st.integers(needed, max(high, needed)))
            rule |= {"version_min": low, "version_max": high + draw(st.integers(0, 2))}
        known = selectable(registry.schema(key).request, range(low, high + 1))
        names = [n for n in names if n not in ENTITY_FIELDS or ENTITY_FIELDS[n] in known]
    for name in draw(st.lists(st.sampled_from(names), max_size=2, unique=True)):
        rule[name] = draw(_SELECTORS[name])
    for name in draw(st.lists(st.sampled_from(list(_WHEN)), max_size=1)):
        rule[name] = draw(_WHEN[name])
        per = sorted(PER.intersection(kind.selectors if "point" not in rule else names))
        if per and kind.matches != "appends" and draw(_flags):
            rule["per"] = draw(st.sampled_from(per))
    for name, is_needed in fields.items():
        if name == "distribution" and "jitter_ms" not in rule:
            continue
        if is_needed or (name not in ("bytes", "point", "at") and draw(_flags)):
            rule[name] = draw(_OPTIONS[name])
    if draw(_flags) and kind.places and "point" not in rule:
        rule["at"] = draw(st.sampled_from(kind.places))
    return rule


def _effective_from(key: ApiKey) -> int | None:
    """The first version in which every action can change a response; None if there is none."""
    throttled = registry.throttle_versions(key)
    flexible = registry.schema(key).response.__flexible__
    first = max(throttled.low, flexible.low)
    return first if first <= min(throttled.high, flexible.high, SERVED[key][1]) else None


@st.composite
def wrong_rules(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    """A rule with one wrong field, and the name of that field."""
    rule = draw(rules())
    wrong = draw(st.sampled_from(sorted(_WRONG)))
    if wrong == "listener" and "client_id" not in ACTIONS[rule["action"]].selectors:
        wrong = "topic"
    if wrong == "point":
        rule = {"action": "hold"}
    if wrong == "topic" and rule["action"] not in ("refuse", "silent", "close"):
        rule = {"action": "observe", "api": "Heartbeat"}
    if wrong in ("api", "connection"):
        rule = {"action": "observe"}
    rule[wrong] = draw(_WRONG[wrong])
    for name in set(_WHEN) & {wrong}:
        for other in set(_WHEN) - {name}:
            rule.pop(other, None)
    return rule, wrong


_WRONG: Final[dict[str, st.SearchStrategy[Any]]] = {
    "action": st.sampled_from(["explode", "errors", "", "ERROR"]),
    "api": st.sampled_from(["Produces", "-1", "99", "Vote"]),
    "version_min": st.sampled_from([-1, 2**15, 1.5, "1"]),
    "client_id": st.sampled_from([5, True, "x" * 2000]),
    "connection": st.sampled_from([-1, "1"]),
    "address": st.sampled_from(["somewhere", "300.0.0.1", "10.0.0.0/40"]),
    "listener": st.sampled_from(["", 1]),
    "topic": st.sampled_from(["t", ""]),
    "topic_id": st.sampled_from(["AAAA", "!" * 22]),
    "partition": st.sampled_from([-1, "0", 0.5]),
    "first": st.sampled_from([0, -1, "1"]),
    "nth": st.sampled_from([0, True]),
    "every": st.sampled_from([0, 10**12]),
    "probability": st.sampled_from([0, -0.1, 1.1, "half"]),
    "until_ms": st.sampled_from([0, -1]),
    "at": st.sampled_from(["later", 1]),
    "point": st.sampled_from(["somewhere", 1]),
    "error": st.sampled_from(["NOT_AN_ERROR", "9999", 5]),
    "delay_ms": st.sampled_from([-1, 0, "1"]),
    "name": st.sampled_from(["a b", "12", "", "x" * 65]),
    "nonsense": st.just(1),
}

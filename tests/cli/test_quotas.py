"""``minibroker quotas``: tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from minibroker.cli import quotas as command_module
from minibroker.cli.control import ControlClient

USE = {
    "type": "produce",
    "user": "u%20v",
    "client_id": "",
    "rate": 2048.0,
    "quota": 1024.0,
    "share": 2.0,
    "path": "/config/users/u%20v",
    "throttle_ms": 10_000.0,
}
FREE = {
    **USE,
    "type": "request",
    "user": "",
    "client_id": "c",
    "quota": None,
    "share": None,
    "path": None,
    "throttle_ms": None,
}
EXPLAINED = {
    "type": "produce",
    "user": "u v",
    "client_id": "c",
    "key": "producer_byte_rate",
    "sharing": "all of this user's connections share one counter",
    "levels": [
        {"path": "/config/users/u%20v", "value": 1024.0, "holds": True, "why": "applies: the"},
        {"path": "/config/users/<default>", "value": None, "holds": False, "why": "not set"},
    ],
    "quota": 1024.0,
    "path": "/config/users/u%20v",
    "samples": [{"ago_ms": 500, "total": 20480.0}],
    "rate": 2048.0,
    "window_ms": 10_000,
    "throttle_ms": 10_000,
    "formula": "(rate - quota) / quota * window",
    "throttle": None,
}
THROTTLE = {
    "number": 17,
    "ago_ms": 2500,
    "type": "produce",
    "user": "u%20v",
    "client_id": "",
    "api": "Produce",
    "throttle_ms": 10_000,
}


class Playing(ControlClient):
    """A control API with one response, which records the requested paths."""

    def __init__(self, answer: Any) -> None:
        super().__init__("http://127.0.0.1:1")
        self.answer = answer
        self.asked: list[str] = []

    def request(self, method: str, target: str, *_: object) -> bytes:
        assert method == "GET"
        self.asked.append(target)
        return json.dumps(self.answer).encode() + b"\n"


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Playing]:
    def begin(answer: Any) -> Playing:
        playing = Playing(answer)
        monkeypatch.setattr("minibroker.cli.control.find_control", lambda *_: playing)
        return playing

    return begin


def test_quotas_list_prints_a_table(command: Any, play: Any) -> None:
    playing = play({"counting": True, "uses": [USE, FREE], "throttles": []})
    lines = command("quotas", "list").stdout.splitlines()
    assert playing.asked == ["/v1/quotas"]
    assert lines[0].split() == [
        "TYPE",
        "USER",
        "CLIENT-ID",
        "RATE",
        "QUOTA",
        "USED",
        "THROTTLE",
        "SET",
        "AT",
    ]
    assert "u v   -          2048 B/s  1024 B/s  200%  10000 ms  /config/users/u%20v" in lines[1]
    assert lines[2].split() == ["request", "-", "c", "2048", "%", "-", "-", "-", "-"]
    assert len(lines) == 3


def test_quotas_list_prints_recent_throttles(command: Any, play: Any) -> None:
    play({"counting": True, "uses": [USE], "throttles": [THROTTLE] * 20})
    lines = command("quotas", "list").stdout.splitlines()
    assert "--throttle NUMBER" in lines[3]
    assert " ".join(lines[5].split()) == "17 2500 ms produce u v - Produce 10000 ms"
    assert len(lines) == 5 + command_module.THROTTLES_MAX


def test_quotas_list_without_quotas_says_so(command: Any, play: Any) -> None:
    play({"counting": False, "uses": []})
    assert command("quotas", "list").stdout.startswith("No quota was set")


def test_explanation_prints_every_step(command: Any, play: Any) -> None:
    playing = play(EXPLAINED)
    shown = command("quotas", "explain", "--user", "u v", "--client-id", "c").stdout
    assert playing.asked == ["/v1/quotas/explain?user=u+v&client_id=c&type=produce"]
    assert "Sharing: all of this user's connections share one counter." in shown
    assert ">  /config/users/u%20v      1024   applies: the" in shown
    assert "500 ms ago      20480" in shown
    assert "Throttle: 10000 ms" in shown
    assert "(rate - quota) / quota * window" in shown


def test_throttle_is_explained_by_id(command: Any, play: Any) -> None:
    playing = play({**EXPLAINED, "throttle": THROTTLE})
    shown = command("quotas", "explain", "--throttle", "17").stdout
    assert playing.asked == ["/v1/quotas/explain?throttle=17"]
    assert "Throttle 17: a Produce request 2500 ms ago was throttled for 10000 ms." in shown
    assert "Throttle: 10000 ms at that time" in shown


def test_figures_have_no_false_precision_and_limits_every_digit(command: Any, play: Any) -> None:
    quota = {"rate": 60073.94268, "quota": 1048576.0}
    play({"counting": True, "uses": [{**USE, **quota}], "throttles": []})
    assert "60074 B/s  1048576 B/s" in command("quotas", "list").stdout
    play({**EXPLAINED, **quota, "samples": [{"ago_ms": 5, "total": 0.03126999}]})
    shown = command("quotas", "explain", "--client-id", "c").stdout
    assert "Rate:     60074 B/s over" in shown
    assert "Quota:    1048576 B/s" in shown
    assert "5 ms ago        0.0313" in shown


def test_throttle_of_a_shared_counter_is_of_any_user(command: Any, play: Any) -> None:
    play({**EXPLAINED, "throttle": THROTTLE, "user": None})
    shown = command("quotas", "explain", "--throttle", "17").stdout
    assert shown.startswith(f"{EXPLAINED['key']} of any user, client-id 'c'")
    play({**EXPLAINED, "throttle": THROTTLE, "client_id": None})
    assert "of user 'u v', any client-id" in command("quotas", "explain", "--throttle", "17").stdout


@pytest.mark.parametrize("words", [["list"], ["explain"]])
def test_quotas_json_prints_the_response(command: Any, play: Any, words: list[str]) -> None:
    play(EXPLAINED)
    assert json.loads(command("quotas", *words, "--json").stdout) == EXPLAINED

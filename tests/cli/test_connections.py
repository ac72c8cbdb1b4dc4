"""The view of connections: complete, narrow, short and empty."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from minibroker.cli.connections import ago, render_view
from minibroker.cli.control import ControlClient
from minibroker.cli.output import CliError
from minibroker.cli.screen import Emphasis, Line, ViewSize

PER_IP = (
    "10.0.0.7 was turned away: it had 3 connections, the most that max.connections.per.ip=3 "
    "allows; close some, or raise the limit."
)
QUOTA = (
    "10.0.0.9 was turned away: the quota connection_creation_rate=0 of the ip 10.0.0.9 lets "
    "nobody in; raise or remove it."
)


def connection(
    host: str,
    age_ms: int,
    state: str = "reading",
    api: str | None = None,
    principal: str = "User:ANONYMOUS",
) -> Any:
    place = {"client_address": f"{host}:5", "principal": principal}
    return {**place, "age_ms": age_ms, "state": state, "in_flight": api}


def listener(name: str, port: int, **others: Any) -> dict[str, Any]:
    silent = {"rate": 0.0, "rate_limit": None, "limit": None, "blocked_share": 0.0}
    counts = {"connections": 0, "waiting": 0, "held": 0, "protected": False}
    place = {"listener": name, "host": "127.0.0.1", "port": port}
    return {**silent, **counts, **place, **others}


def processor(index: int, used: int, *connections: Any) -> dict[str, Any]:
    return {
        "processor": f"processor-{index}",
        "slots_total": 20,
        "slots_used": used,
        "connections_total": len(connections),
        "connections": connections,
    }


def address(ip: str, connections: int, limit: int | None = None, **rate: Any) -> dict[str, Any]:
    return {
        "ip": ip,
        "connections": connections,
        "limit": limit,
        "rate": None,
        "rate_limit": None,
        **rate,
    }


def rejection(text: str, ago_ms: int, listener: str = "OUTSIDE") -> dict[str, Any]:
    return {"ago_ms": ago_ms, "listener": listener, "text": text}


def waiting(listener: str, ago_ms: int, reason: str) -> dict[str, Any]:
    return {"kind": "waiting", "listener": listener, "ago_ms": ago_ms, "reason": reason}


def answer(**others: Any) -> dict[str, Any]:
    busy = listener(
        "OUTSIDE",
        9093,
        connections=4,
        limit=4,
        rate=12.34,
        rate_limit=50,
        blocked_share=0.125,
        waiting=1,
        held=3,
    )
    return {
        "mode": "single",
        "total": 4,
        "limit": 40,
        "rate": 12.34,
        "rate_limit": None,
        "listeners": [listener("INSIDE", 9092, protected=True), busy],
        "processors": [
            processor(
                0,
                3,
                connection("10.0.0.7", 4000),
                connection("10.0.0.7", 130_000, "muted", "Fetch"),
                connection("10.0.0.7", 100, "muted", "Fetch"),
            ),
            processor(1, 0, connection("::ffff:10.0.0.8", 7_300_000)),
        ],
        "addresses": [
            address("10.0.0.7", 3, 3, rate=0.5, rate_limit=2.5),
            address("10.0.0.8", 1),
            address("10.0.0.9", 0, rate=0.0, rate_limit=0),
        ],
        "addresses_total": 2,
        "connection_events": [
            waiting("OUTSIDE", 9000, "max.connections"),
            waiting("INSIDE", 1, "x"),
        ],
        "rejections": [rejection(PER_IP, 900), rejection(QUOTA, 3000), rejection(PER_IP, 61_000)],
        "unserved": [],
        **others,
    }


def text(lines: list[Line]) -> list[str]:
    return ["".join(piece.text for piece in line).rstrip() for line in lines]


WHOLE = """\
4/40 connections, 12.3 new ones a second, accepted by one acceptor

LISTENER            CONNECTIONS    NEW/S  BLOCKED  WAITING  HELD  ADDRESS
INSIDE (protected)            0      0.0       0%        0     0  127.0.0.1:9092
OUTSIDE                     4/4  12.3/50      12%        1     3  127.0.0.1:9093
OUTSIDE waits for max.connections, since 9 s

PROCESSOR    SLOTS                      CONNECTIONS  STATE
processor-0  ▮▮▮▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯ 3/20            3  2 Fetch, 1 reading
processor-1  ▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯ 0/20            1  1 reading

CLIENT    CONNECTIONS    NEW/S  OLDEST  STATE
10.0.0.7          3/3  0.5/2.5   2 min  2 Fetch, 1 reading
10.0.0.8            1        -     2 h  1 reading
10.0.0.9            0    0.0/0       -  -

REJECTED
- 0 s ago, 2 times, OUTSIDE: 10.0.0.7 was turned away: it had 3 connections, the
  most that max.connections.per.ip=3 allows; close some, or raise the limit.
- 3 s ago, OUTSIDE: 10.0.0.9 was turned away: the quota
  connection_creation_rate=0 of the ip 10.0.0.9 lets nobody in; raise or remove
  it."""


def test_view_shows_all_sections() -> None:
    assert "\n".join(text(render_view(answer(), ViewSize(80)))) == WHOLE


def test_wide_view_does_not_wrap_lines() -> None:
    lines = text(render_view(answer(), ViewSize()))
    assert lines[-2:] == [
        f"- 0 s ago, 2 times, OUTSIDE: {PER_IP}",
        f"- 3 s ago, OUTSIDE: {QUOTA}",
    ]


@pytest.mark.parametrize("columns", [1, 10, 20, 41, 69, 70, 200])
def test_lines_fit_the_width_of_the_terminal(columns: int) -> None:
    lines = text(render_view(answer(), ViewSize(columns)))
    assert max(map(len, lines)) <= columns


def test_narrow_terminal_counts_slots_without_drawing_them() -> None:
    lines = text(render_view(answer(), ViewSize(50)))
    assert "processor-0  3/20             3  2 Fetch, 1 readi…" in lines
    assert "LISTENER            CONNECTIONS    NEW/S  BLOCKED…" in lines


@pytest.mark.parametrize("height", range(1, 30))
def test_lines_fit_the_height_of_the_terminal(height: int) -> None:
    lines = text(render_view(answer(), ViewSize(80, height)))
    assert len(lines) <= height
    assert lines == text(render_view(answer(), ViewSize(80)))[:height] or "…" in lines


def unserved(client_id: str | None, software: str | None, requests: int = 1) -> dict[str, Any]:
    return {
        "ago_ms": 4000,
        "client_host": "10.0.0.7",
        "client_id": client_id,
        "software_name": software,
        "software_version": software and "1.2",
        "protocol": "transactions",
        "advice": "remove transactional.id",
        "requests": requests,
    }


def test_unserved_clients_are_listed_with_advice() -> None:
    clients = [unserved("app \x1b", "lib", 3), unserved(None, None)]
    lines = text(render_view(answer(unserved=clients), ViewSize()))
    assert lines[lines.index("UNSUPPORTED") :][:4] == [
        "UNSUPPORTED",
        (
            "- 4 s ago, 3 times, 10.0.0.7 (app \\x1b lib 1.2) requested transactions: "
            "remove transactional.id."
        ),
        "- 4 s ago, 10.0.0.7 requested transactions: remove transactional.id.",
        "",
    ]
    assert "UNSUPPORTED" not in text(render_view(answer(), ViewSize()))


def test_addresses_and_rejections_share_the_height() -> None:
    lines = text(render_view(answer(), ViewSize(80, 18)))
    assert lines[11:] == [
        "CLIENT    CONNECTIONS    NEW/S  OLDEST  STATE",
        "10.0.0.7          3/3  0.5/2.5   2 min  2 Fetch, 1 reading",
        "…",
        "",
        "REJECTED",
        "- 0 s ago, 2 times, OUTSIDE: 10.0.0.7 was turned away: it had 3 connections, the",
        "…",
    ]


def test_reached_limits_and_waits_are_emphasized() -> None:
    pieces = [piece for line in render_view(answer(), ViewSize(80)) for piece in line]
    alarms = [piece.text for piece in pieces if piece.paint is Emphasis.ALARM]
    assert alarms == ["4/4", "3/3", "0.0/0"]
    warnings = [piece.text for piece in pieces if piece.paint is Emphasis.WARNING]
    assert warnings == [
        "12%",
        "1",
        "3",
        "OUTSIDE waits for max.connections, since 9 s",
        "▮▮▮▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯ 3/20",
    ]


def test_wait_reasons_without_setting_are_described() -> None:
    for reason, expected in (
        ("processors", "a free slot"),
        ("tokens", "tokens of other processors"),
        ("max.connections", "max.connections"),
    ):
        shown = answer(connection_events=[waiting("OUTSIDE", 50, reason)])
        assert f"OUTSIDE waits for {expected}, since 0 s" in text(render_view(shown, ViewSize(80)))
    assert not [
        line
        for line in text(render_view(answer(connection_events=[]), ViewSize()))
        if "waits" in line
    ]


def test_view_without_connections_is_short() -> None:
    idle = {**processor(0, 0), "slots_total": 0}
    empty = answer(
        addresses=[], addresses_total=0, rejections=[], mode="sharded", processors=[idle]
    )
    lines = text(render_view(empty, ViewSize(80)))
    assert "processor-0  -                0" in lines
    assert lines[0].endswith("accepted by processors")
    assert lines[-3:] == ["no connections", "", "no rejected connections"]


@pytest.mark.parametrize(
    ("total", "limit", "expected"),
    [(0, None, "0 connections, "), (1, None, "1 connection, "), (1, 2, "1/2 connections, ")],
)
def test_one_connection_is_singular(total: int, limit: int | None, expected: str) -> None:
    (first, *_) = text(render_view(answer(total=total, limit=limit), ViewSize(80)))
    assert first.startswith(expected)


def test_omitted_addresses_are_counted() -> None:
    lines = text(render_view(answer(addresses_total=7), ViewSize(80)))
    assert "and 5 more addresses" in lines


def test_number_of_listed_states_is_limited() -> None:
    apis = ("Fetch", "Produce", "Metadata", "Heartbeat", "JoinGroup")
    many = [connection("10.0.0.7", 1, "muted", api) for api in (*apis, "Fetch")]
    lines = text(render_view(answer(processors=[processor(0, 0, *many)]), ViewSize(120)))
    assert any(line.endswith("2 Fetch, 1 Produce, 1 Metadata, 1 Heartbeat, …") for line in lines)


@pytest.mark.parametrize(
    ("ms", "expected"),
    [
        (0, "0 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (7_300_000, "2 h"),
        (200_000_000, "2 d"),
    ],
)
def test_ago_uses_the_largest_unit(ms: int, expected: str) -> None:
    assert ago(ms) == expected


def test_users_are_shown_if_authenticated_and_wide() -> None:
    names = ["alice", "alice", "bob", "carol\x1b[31m", "d" * 99, "d" * 99]
    its = [connection("10.0.0.7", 1, principal=f"User:{name}") for name in names]
    host = connection("10.0.0.8", 1, principal="Host:\x1b[2J")
    found = answer(processors=[processor(0, 0, *its, host, connection("10.0.0.9", 1))])
    lines = text(render_view(found, ViewSize()))
    at = next(at for at, line in enumerate(lines) if line.startswith("CLIENT"))
    heading, first, second, third = lines[at : at + 4]
    assert "OLDEST  USERS" in heading
    assert f"alice, {'d' * 23}…, …" in first
    assert "Host:\\x1b[2J" in second
    assert "ANONYMOUS" in third
    assert "USERS" not in "".join(text(render_view(found, ViewSize(columns=69))))
    assert "USERS" not in "".join(text(render_view(answer(), ViewSize())))


Command = Callable[..., Any]


class Playing(ControlClient):
    """A control API with these responses, which then stops."""

    def __init__(self, *answers: Any) -> None:
        super().__init__("http://127.0.0.1:1")
        self.answers = list(answers)

    def request(self, method: str, target: str, *_: object) -> bytes:
        assert (method, target) == ("GET", "/v1/connections")
        if not self.answers:
            raise CliError("the broker is gone")
        return json.dumps(self.answers.pop(0)).encode() + b"\n"


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Playing]:
    """Replace the control API that a command finds."""

    def begin(*answers: Any) -> Playing:
        playing = Playing(*answers)
        monkeypatch.setattr("minibroker.cli.control.find_control", lambda *_: playing)
        return playing

    return begin


def test_output_to_a_pipe_is_printed_once_and_complete(
    command: Command, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # It may be set in the environment of the tests.
    play(answer())
    result = command("connections", "-b", "unused:1")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert result.stdout.startswith("4/40 connections, 12.3 new ones a second")
    assert result.stdout.rstrip().endswith("raise or remove it.")


def test_columns_variable_truncates_lines(
    command: Command, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    play(answer())
    result = command("connections", "--once", "-b", "unused:1")
    assert max(map(len, result.stdout.splitlines())) == 30


def test_json_option_prints_the_response(command: Command, play: Any) -> None:
    play(answer(total=7))
    result = command("connections", "--json", "-b", "unused:1")
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["total"] == 7


def test_connections_of_running_broker_are_printed(command: Command) -> None:
    result = command("connections")
    assert result.exit_code == 0
    assert "PLAINTEXT" in result.stdout
    assert "processor-0" in result.stdout

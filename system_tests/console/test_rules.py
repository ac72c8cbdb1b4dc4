"""The console's rules one by one: what follows from two answers, where marks sit, when to ask.

They run in the browser that the rest needs anyway: it is the engine that people have, and it
spares the project a second toolchain. Arguments and results travel as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from system_tests.harness.browser import Browser

pytestmark = pytest.mark.minibroker


def connection(number: int, address: str = "127.0.0.2:5", **others: Any) -> dict[str, Any]:
    return {
        "number": number,
        "connection_id": f"id-{number}",
        "listener": "PLAINTEXT",
        "client_address": address,
        "client_id": None,
        "age_ms": 100,
        "idle_ms": 60_000,
        "in_flight": None,
        **others,
    }


def event(seq: int, kind: str, number: int, ago_ms: float = 0, **others: Any) -> dict[str, Any]:
    return {
        "seq": seq,
        "ago_ms": ago_ms,
        "kind": kind,
        "number": number,
        "listener": "PLAINTEXT",
        "client_address": "127.0.0.2:5",
        "processor": "processor-0",
        "reason": None,
        **others,
    }


def answer(
    connections: Sequence[dict[str, Any]] = (),
    connection_events: Sequence[dict[str, Any]] = (),
    **others: Any,
) -> dict[str, Any]:
    """Return a broker's answer with one processor."""
    processor = {
        "processor": "processor-0",
        "slots_total": 20,
        "slots_used": 0,
        "connections": list(connections),
        "connections_total": len(connections),
    }
    return {
        "mode": "single",
        "total": len(connections),
        "limit": None,
        "rate": 0,
        "rate_limit": None,
        "listeners": [],
        "processors": [processor],
        "addresses": [],
        "addresses_total": 0,
        "rejections": [],
        "connection_events": list(connection_events),
        "unserved": [],
        **others,
    }


SCENES = """
    const { advance, NOTHING } = await import("/console/model.js");
    let scene = NOTHING;
    const seen = [];
    for (const answer of args[0]) {
        scene = advance(scene, answer);
        seen.push({ flights: scene.flights, processors: scene.processors });
    }
    return seen;
"""


def scenes(rules: Browser, *answers: dict[str, Any]) -> list[dict[str, Any]]:
    """The scene after each answer."""
    found: list[dict[str, Any]] = rules.run(SCENES, answers)
    return found


def marks(scene: dict[str, Any]) -> dict[str, int]:
    """Seats by key in the only processor."""
    return {mark["key"]: mark["seat"] for mark in scene["processors"][0]["marks"]}


def flights(scene: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(flight["kind"], flight["key"]) for flight in scene["flights"]]


def call(rules: Browser, module: str, function: str, *arguments: Any) -> Any:
    script = "const found = await import(args[0]); return found[args[1]](...args[2])"
    return rules.run(script, f"/console/{module}.js", function, arguments)


def test_unserved_client_becomes_a_warning_that_names_it(rules: Browser) -> None:
    client = {
        "client_host": "10.0.0.7",
        "client_id": "app",
        "software_name": "lib",
        "software_version": "1.2",
        "protocol": "transactions",
        "advice": "remove transactional.id",
        "requests": 3,
        "ago_ms": 40,
    }
    warning = call(rules, "model", "warningOf", client)
    assert warning["about"] == "app, lib 1.2"
    assert warning["text"] == "It requested transactions: remove transactional.id."
    assert (warning["who"], warning["times"], warning["ago"]) == ("10.0.0.7", 3, 40)
    silent = {**client, "client_id": None, "software_name": None, "software_version": None}
    assert call(rules, "model", "warningOf", silent)["about"] == ""


def test_problems_list_conditions_and_stopped_processes(rules: Browser) -> None:
    health = {
        "processes": [
            {"name": "acceptor", "state": "running"},
            {"name": "worker-0", "state": "restarting"},
        ],
        "conditions": [
            {
                "process": "worker-1",
                "kind": "storage_failed",
                "subject": "/data",
                "text": "/data: No space left on device; 0 bytes are free",
                "since_ms": 5,
            }
        ],
    }
    down, failed = call(rules, "model", "conditionsOf", health)
    assert (down["who"], down["about"]) == ("worker-0", "restarting")
    assert (failed["who"], failed["about"]) == ("worker-1", "storage failed")
    assert failed["text"] == "/data: No space left on device; 0 bytes are free"
    assert call(rules, "model", "conditionsOf", {"processes": [], "conditions": []}) == []


def test_open_connection_keeps_slot_and_new_takes_first_free(rules: Browser) -> None:
    all_three, less, more = scenes(
        rules,
        answer([connection(1), connection(2), connection(3)]),
        answer([connection(3), connection(1)]),
        answer([connection(3), connection(1), connection(8), connection(9)]),
    )
    assert marks(all_three) == {"id-1": 0, "id-2": 1, "id-3": 2}
    assert marks(less) == {"id-1": 0, "id-3": 2}
    assert marks(more) == {"id-1": 0, "id-3": 2, "id-8": 1, "id-9": 3}


def test_when_most_have_left_the_rest_close_ranks(rules: Browser) -> None:
    crowd = [connection(number) for number in range(100)]
    _, few = scenes(rules, answer(crowd), answer([crowd[7], crowd[99]]))
    assert marks(few) == {"id-7": 0, "id-99": 1}


def test_existing_connection_is_not_animated(rules: Browser) -> None:
    there = answer([connection(1)], [event(4, "handed", 1)])
    first, same = scenes(rules, there, there)
    assert flights(first) == flights(same) == []


def test_new_connection_is_animated_once(rules: Browser) -> None:
    events = [event(1, "accepted", 2), event(2, "handed", 2, ago_ms=100)]
    _, scene, after = scenes(
        rules,
        answer(),
        answer([connection(2), connection(3, "127.0.0.9:1")], events),
        answer([connection(2), connection(3, "127.0.0.9:1")], events),
    )
    assert flights(scene) == [("arrival", "id-2"), ("arrival", "id-3")]
    assert scene["flights"][0]["delay"] == 150
    assert flights(after) == []


def test_connection_closed_between_polls_is_drawn_as_visit(rules: Browser) -> None:
    events = [event(1, "handed", 2), event(2, "closed", 2)]
    _, scene = scenes(rules, answer(), answer([], events))
    assert flights(scene) == [("visit", None)]


def test_late_event_of_seen_connection_is_not_animated(rules: Browser) -> None:
    late = [event(1, "handed", 2), event(2, "closed", 2)]
    _, seen, events = scenes(rules, answer(), answer([connection(2)]), answer([], late))
    assert flights(seen) == [("arrival", "id-2")]
    assert flights(events) == []


def test_old_events_are_not_animated(rules: Browser) -> None:
    old = [event(1, "refused", 3, ago_ms=9000), event(2, "handed", 4, ago_ms=9000)]
    _, scene = scenes(rules, answer(), answer([connection(2, age_ms=9000)], old))
    assert list(marks(scene)) == ["id-2"]
    assert flights(scene) == []


def test_rejection_is_animated(rules: Browser) -> None:
    events = [event(1, "refused", 2, processor=None, reason="max_connections_per_ip")]
    _, scene = scenes(rules, answer(), answer([], events))
    assert flights(scene) == [("rejection", None)]


def test_restarted_broker_event_numbers_start_over(rules: Browser) -> None:
    before = answer([connection(1)], [event(900, "handed", 1)])
    _, scene = scenes(rules, before, answer([connection(2)], [event(1, "handed", 2)]))
    assert flights(scene) == [("arrival", "id-2")]


def test_storm_shows_sample_of_requests(rules: Browser) -> None:
    storm = [event(number, "refused", number) for number in range(500)]
    _, scene = scenes(rules, answer(), answer([], storm))
    assert len(scene["flights"]) == 60


def test_thousands_of_connections_are_drawn_ten_per_mark(rules: Browser) -> None:
    crowd = answer([connection(number) for number in range(1000)])
    crowd["processors"][0]["connections_total"] = 5001  # a thousand are listed, and no more
    ((processor,),) = [scene["processors"] for scene in scenes(rules, crowd)]
    assert (processor["count"], processor["factor"]) == (5001, 10)
    assert sum(len(mark["members"]) for mark in processor["marks"]) == 1000
    assert sum(mark["count"] for mark in processor["marks"]) == 5001
    seats = {mark["seat"] for mark in processor["marks"]}
    assert seats == set(range(501)) == set(range(processor["seats"]))


def test_connection_entering_truncated_list_is_not_animated(rules: Browser) -> None:
    before, after = answer([connection(1)]), answer([connection(2)])
    for each in (before, after):
        each["processors"][0]["connections_total"] = 3
    assert flights(scenes(rules, before, after)[1]) == []


def test_connection_colour_follows_its_usage(rules: Browser) -> None:
    looks = [
        call(rules, "model", "lookOf", connection(1, **facts))
        for facts in ({"in_flight": "Fetch"}, {"idle_ms": 10}, {"idle_ms": 10_000})
    ]
    assert looks == ["busy", "fresh", "quiet"]


def test_rejections_are_grouped_by_address_and_reason(rules: Browser) -> None:
    rejections = [
        {"reason": reason, "listener": "PLAINTEXT", "client_address": address, "ago_ms": age}
        for age, (reason, address) in enumerate(
            [("a", "127.0.0.2:1"), ("b", "127.0.0.2:2"), ("a", "127.0.0.2:3"), ("a", "[::1]:4")]
        )
    ]
    found = call(rules, "model", "gather", rejections)
    assert [(each["ip"], each["reason"], each["times"], each["ago_ms"]) for each in found] == [
        ("127.0.0.2", "a", 2, 0),
        ("127.0.0.2", "b", 1, 1),
        ("::1", "a", 1, 3),
    ]


@pytest.mark.parametrize(
    ("room", "marks", "pitch"),
    [((440, 110), 10, 26), ((440, 110), 400, 10), ((440, 110), 800, 7), ((3, 3), 5, 7)],
)
def test_mark_size_follows_the_terminal_size(
    room: tuple[int, int], marks: int, pitch: int, rules: Browser
) -> None:
    packing = call(rules, "layout", "pack", marks, *room)
    assert packing["pitch"] == pitch
    places = [call(rules, "layout", "place", index, packing) for index in (0, 1, marks - 1)]
    found = [call(rules, "layout", "seatAt", at["x"], at["y"], packing) for at in places]
    assert found == [0, 1, marks - 1]
    assert places[-1]["y"] < packing["height"]


def test_marks_of_all_processors_are_bounded(rules: Browser) -> None:
    factors = [
        call(rules, "layout", "factorFor", *each) for each in ((800, 1), (801, 1), (800, 64))
    ]
    assert factors == [1, 10, 100]


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        ("count", [12345], "12,345"),
        ("against", [3, None], "3"),
        ("against", [3, 5], "3 / 5"),
        ("rate", [2.54, 10], "2.5 / 10"),
        ("rate", [None, None], "\N{EN DASH}"),
        ("connections", [1], "1 connection"),
        ("connections", [2000, "younger "], "2,000 younger connections"),
        ("share", [0.004], "< 1 %"),
        ("share", [0.125], "13 %"),
        ("duration", [40], "40 ms"),
        ("duration", [9_940], "9.9 s"),
        ("duration", [59_990], "59 s"),
        ("duration", [185_000], "3 min 5 s"),
        ("duration", [7_260_000], "2 h 1 min"),
        ("duration", [356_400_000], "4 d 3 h"),
        ("ago", [3], "just now"),
        ("ago", [1500], "1.5 s ago"),
        ("amount", ["produce", 999.4], "999 B/s"),
        ("amount", ["fetch", 999.6], "1 kB/s"),
        ("amount", ["fetch", 1048576], "1.05 MB/s"),
        ("amount", ["request", 12.345], "12.3 %"),
        ("amount", ["controller_mutation", 0.5], "0.5 partitions/s"),
        ("use", ["produce", 500, 1000], "500 B/s / 1 kB/s"),
        ("use", ["produce", 33_700, 30_000], "33.7 / 30 kB/s"),
        ("use", ["request", 0.001, 8], "< 0.01 / 8 %"),
        ("exact", [1048576.25], "1,048,576.25"),
        ("party", [{"user": "a%2Fb", "client_id": ""}], "user a/b"),
        ("party", [{"user": "a", "client_id": "b"}], "user a, client-id b"),
        ("party", [{"user": "", "client_id": ""}], "client-id none given"),
        ("decoded", ["cut%2"], "cut%2"),
        ("fullness", [3, 0], 1),
        ("fullness", [0, 0], 0),
        ("fullness", [9, 3], 1),
        ("fullness", [1, 4], 0.25),
    ],
)
def test_figures_are_formatted_with_units(
    function: str, arguments: list[Any], text: Any, rules: Browser
) -> None:
    assert call(rules, "words", function, *arguments) == text


def test_polling_pause_grows_with_latency_and_failures(rules: Browser) -> None:
    pauses = [
        call(rules, "polling", "pauseAfter", *given)
        for given in ((0, 10), (0, 240), (0, 900), (1, 10), (3, 10), (50, 10), (0, 10, 500))
    ]
    assert pauses == [240, 240, 900, 500, 2000, 5000, 490]


ASKED = """
    const { poll } = await import("/console/polling.js");
    let hidden = args[0];
    Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
    let asked = 0;
    window.fetch = async () => { asked += 1; hidden = true; return Response.json({ now: 1 }) };
    const answered = new Promise((resolve) => poll("v1/connections", resolve));
    const before = asked;
    hidden = false;
    document.dispatchEvent(new Event("visibilitychange"));
    return { before, after: asked, answer: await answered };
"""


@pytest.mark.parametrize(("hidden", "before"), [(True, 0), (False, 1)])
def test_hidden_page_stops_polling_until_visible(hidden: bool, before: int, rules: Browser) -> None:
    assert rules.run(ASKED, hidden) == {"before": before, "after": 1, "answer": {"now": 1}}

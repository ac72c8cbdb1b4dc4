"""Listener lists: syntax, the rules between listeners and advertised ones, and the result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.settings.listeners import (
    LISTENERS_TYPE,
    PROTOCOL_MAP_TYPE,
    Listener,
    advertised_again,
    advertised_by_connection,
    advertised_endpoints,
    client_listeners,
    listener_problems,
    parse_listeners,
)
from minibroker.broker.settings.setting import BadValueError


def test_listener_names_are_converted_to_upper_case() -> None:
    assert parse_listeners("plaintext://:9092, Inner://[::1]:0") == (
        Listener("PLAINTEXT", "", 9092),
        Listener("INNER", "::1", 0),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("localhost:9092", "has the entry 'localhost:9092'; an entry is NAME://host:port"),
        ("A://h", "'A://h', whose address must be host:port"),
        ("A://h:99999", "port 99999"),
        ("A://h:1,", "has the entry ''"),
        ("A://h:1,a://h:2", "names the listener A twice"),
        ("", "has the entry ''"),
    ],
)
def test_invalid_listener_list_is_rejected_with_its_entry(text: str, message: str) -> None:
    with pytest.raises(BadValueError, match=message):
        parse_listeners(text)


@given(st.text(alphabet="Aa:/[],.019-_", max_size=40))
def test_any_text_parses_as_listeners_or_is_rejected(text: str) -> None:
    try:
        listeners = parse_listeners(text)
    except BadValueError:
        return
    assert parse_listeners(LISTENERS_TYPE.render(listeners)) == listeners


def test_protocol_map_is_parsed_and_invalid_entry_rejected() -> None:
    read = PROTOCOL_MAP_TYPE.parse("inner:PLAINTEXT,SSL:SSL")
    assert read == (("INNER", "PLAINTEXT"), ("SSL", "SSL"))
    with pytest.raises(BadValueError, match="has the entry 'INNER:TLS'"):
        PROTOCOL_MAP_TYPE.parse("INNER:TLS")
    with pytest.raises(BadValueError, match="INNER twice"):
        PROTOCOL_MAP_TYPE.parse("INNER:SSL,inner:SSL")


def problems(
    listeners: str, advertised: str = "", protocols: dict[str, str] | None = None
) -> list[tuple[str, str]]:
    parsed = parse_listeners(advertised) if advertised else ()
    return listener_problems(parse_listeners(listeners), parsed, protocols or {})


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_SSL"])
def test_listener_has_the_protocol_of_its_name_or_of_the_map(protocol: str) -> None:
    assert problems(f"{protocol}://h:1") == []
    assert problems("INNER://h:1", protocols={"INNER": protocol}) == []
    assert problems(f"INNER://h:1,{protocol}://h:2", protocols={"INNER": "SSL"}) == []


@pytest.mark.parametrize(
    ("listener", "protocols", "advice"),
    [
        ("INNER://h:1", {}, "set listener.security.protocol.map=INNER:PLAINTEXT"),
        (
            "INNER://h:1",
            {"OTHER": "SSL"},
            "set listener.security.protocol.map=OTHER:SSL,INNER:PLAINTEXT",
        ),
        (
            "SLL://h:1",
            {},
            "did you mean SSL? Otherwise set listener.security.protocol.map=SLL:PLAINTEXT",
        ),
    ],
)
def test_listener_without_protocol_is_rejected_as_by_kafka(
    listener: str, protocols: dict[str, str], advice: str
) -> None:
    [(name, text)] = problems(listener, protocols=protocols)
    assert name == "listeners"
    protocol = listener.partition(":")[0]
    assert text == f"has {listener}, but no security protocol is named {protocol}: {advice}"


def test_wildcard_listener_without_advertised_address_is_rejected() -> None:
    [(name, text)] = problems("SSL://0.0.0.0:9092")
    assert name == "listeners"
    assert "set advertised.listeners=SSL://<host that clients reach>:9092" in text
    assert problems("SSL://0.0.0.0:9092", "SSL://box:9092") == []
    [(name, _)] = problems("SSL://h:9092", "SSL://0.0.0.0:9092")
    assert name == "advertised.listeners"


def test_advertised_listener_without_listener_is_rejected() -> None:
    [(name, text)] = problems("SSL://h:9092", "SSL://h:1,B://h:9")
    assert name == "advertised.listeners"
    assert text == "names B; listeners has SSL"


def test_controller_listeners_alone_are_rejected() -> None:
    listeners = client_listeners(parse_listeners("CONTROLLER://h:1"), ("controller",))
    assert listeners == ()
    [(_, text)] = listener_problems(listeners, (), {})
    assert "must name a listener for clients" in text


def test_advertised_endpoint_has_the_bound_port() -> None:
    listeners = parse_listeners("A://127.0.0.1:0,B://:9,C://h:7")
    parsed = parse_listeners("C://proxy:0")
    endpoints = advertised_endpoints(listeners, parsed, {"A": 1234, "B": 9, "C": 7}, "box")
    assert endpoints == {"A": ("127.0.0.1", 1234), "B": ("box", 9), "C": ("proxy", 7)}


def test_host_of_listener_advertised_by_connection_is_localhost_with_its_port() -> None:
    listeners = parse_listeners("A://0.0.0.0:0,B://:9,C://:7")
    parsed = parse_listeners("A://*:0,B://*:29092,C://h:7")
    endpoints = advertised_endpoints(listeners, parsed, {"A": 1234, "B": 9, "C": 7}, "box")
    assert endpoints == {"A": ("localhost", 1234), "B": ("localhost", 29092), "C": ("h", 7)}
    assert advertised_by_connection(parsed) == {"A", "B"}
    assert LISTENERS_TYPE.render(parsed) == "A://*:0,B://*:29092,C://h:7"


def test_changed_advertised_listeners_keep_what_they_leave_open() -> None:
    endpoints = {"A": ("a", 1), "B": ("b", 2), "C": ("c", 3)}
    again = advertised_again(endpoints, parse_listeners("A://:0,B://*:0,GONE://h:1"))
    assert again == {"A": ("a", 1), "B": ("localhost", 2), "C": ("c", 3)}


def test_listener_by_connection_must_be_on_all_interfaces() -> None:
    [(name, text)] = problems("PLAINTEXT://10.0.0.7:9092", "PLAINTEXT://*:9092")
    assert name == "advertised.listeners"
    assert text.endswith("listen on all interfaces with listeners=PLAINTEXT://0.0.0.0:9092")
    assert not problems("PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://*:9092")
    assert not problems("PLAINTEXT://:9092", "PLAINTEXT://*:9092")
    [(name, text)] = problems("PLAINTEXT://*:9092")
    assert name == "listeners"
    assert "0.0.0.0 means all interfaces" in text


@pytest.mark.parametrize("address", ["*h:1", "**:1", "*"])
def test_asterisk_is_a_host_only_by_itself(address: str) -> None:
    with pytest.raises(BadValueError, match="must be host:port"):
        parse_listeners(f"A://{address}")

"""Rules: a client uses versions that the broker advertised, and names itself.

Owns what a client may know of a broker's versions at each request. It must never know which
versions minibroker serves. Invariant: a connection without ApiVersions is judged by the last
response that the client got on any connection. KIP-35 and KIP-511.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from minibroker.lab.verdicts.exchanges import ObservedExchange
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation
from minibroker.lab.verdicts.traffic import ClientTraffic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
"""KIP-511's pattern of a software name and version."""
NAMES_SOFTWARE_FROM: Final = 3
"""Version of ApiVersions from which a client names its software."""
REFUSALS_MAX: Final = 10
"""Refused requests in a row until the client should have tried another version. Each connection
may try the newest one.
"""

Ranges = Mapping[int, tuple[int, int]]


def _ranges(exchange: ObservedExchange) -> Ranges | None:
    """The versions that a response to ApiVersions advertises."""
    if exchange.key is not ApiKey.API_VERSIONS or exchange.response is None:
        return None
    found = {
        each["api_key"]: (each["min_version"], each["max_version"])
        for each in exchange.response["api_keys"]
    }
    return found or None


def _observe_versions(traffic: ClientTraffic) -> Iterator[Situation]:
    advertised: dict[str, tuple[int, Ranges]] = {}
    last: tuple[int, Ranges] | None = None
    for exchange in traffic.exchanges:
        connection = exchange.sent.connection or ""
        if exchange.key is ApiKey.API_VERSIONS:
            ranges = _ranges(exchange)
            if ranges is not None and exchange.answer is not None:
                last = advertised[connection] = (exchange.answer.sequence, ranges)
            continue
        known = advertised.get(connection, last)
        if known is None or exchange.key is None:
            continue
        sequence, ranges = known
        evidence = (sequence, exchange.sent.sequence)
        low, high = ranges.get(int(exchange.key), (0, -1))
        if low <= exchange.version <= high:
            yield Situation(evidence)
        elif low > high:
            yield Situation(evidence, f"sent {exchange.title}, which was not advertised")
        else:
            yield Situation(evidence, f"sent {exchange.title}; versions {low} to {high} exist")


def _observe_fallback(traffic: ClientTraffic) -> Iterator[Situation]:
    """Every connection may try the newest version, but the client must try another one, too."""
    refused: list[ObservedExchange] = []
    in_vain = 0
    with_fallback = _connections_with_fallback(traffic)
    for exchange in traffic.of_api(ApiKey.API_VERSIONS):
        last = refused[-1] if refused else None
        if last is not None and last.answer is not None and exchange.version != last.version:
            evidence = (last.answer.sequence, exchange.sent.sequence)
            unknown = (0, last.version)  # Brokers before Kafka 2.4 answer without versions.
            low, high = (_ranges(last) or {}).get(ApiKey.API_VERSIONS, unknown)
            fault = ""
            if not low <= exchange.version <= high:
                fault = (
                    f"sent {exchange.title} after UNSUPPORTED_VERSION; versions {low} to {high} "
                    "exist"
                )
            yield Situation(evidence, fault)
            refused.clear()
            in_vain = 0
        if _is_refused(exchange):
            refused.append(exchange)
            in_vain += exchange.sent.connection not in with_fallback
            if in_vain == REFUSALS_MAX:
                yield Situation(
                    tuple(each.sent.sequence for each in refused),
                    f"sent {exchange.title} {REFUSALS_MAX} times, which was refused",
                )


def _connections_with_fallback(traffic: ClientTraffic) -> set[str | None]:
    """Return the connections on which ApiVersions was repeated with another version.

    Several clients may have the same client id, and try the newest version at the same time.
    """
    first: dict[str | None, int] = {}
    found: set[str | None] = set()
    for exchange in traffic.of_api(ApiKey.API_VERSIONS):
        name = exchange.sent.connection
        if first.setdefault(name, exchange.version) != exchange.version:
            found.add(name)
    return found


def _is_refused(exchange: ObservedExchange) -> bool:
    response = exchange.response
    return response is not None and response["error_code"] == ErrorCode.UNSUPPORTED_VERSION


def _observe_names(traffic: ClientTraffic) -> Iterator[Situation]:
    exchanges = traffic.of_api(ApiKey.API_VERSIONS)
    named = [each for each in exchanges if each.version >= NAMES_SOFTWARE_FROM]
    for exchange in named:
        if exchange.request is None:
            continue  # A version that the broker does not know.
        for field in ("client_software_name", "client_software_version"):
            text = exchange.request[field]
            fault = "" if SOFTWARE_NAME.fullmatch(text) else f"{field} is {text!r}"
            yield Situation((exchange.sent.sequence,), fault)
    if named:
        return
    for exchange in exchanges:
        _, high = (_ranges(exchange) or {}).get(ApiKey.API_VERSIONS, (0, 0))
        if high >= NAMES_SOFTWARE_FROM:
            yield Situation(
                exchange.sequences,
                f"sent {exchange.title} only, although version {high} was advertised, so the "
                "broker does not know the name of the software",
            )
            return


def _observe_client_ids(traffic: ClientTraffic) -> Iterator[Situation]:
    for connection in traffic.connections:
        for exchange in connection.exchanges:
            missing = not exchange.sent.client_id
            yield Situation(
                (exchange.sent.sequence,),
                f"sent {exchange.title} without a client id" if missing else "",
            )


RULES: Final = (
    BehaviorRule(
        "advertised-versions",
        "The client sends only APIs and versions that the broker advertised.",
        "KIP-35",
        Severity.ERROR,
        "a request after a response to ApiVersions",
        _observe_versions,
        "Use the highest version that both sides have, and report an error if there is none.",
    ),
    BehaviorRule(
        "api-versions-fallback",
        "After UNSUPPORTED_VERSION the client repeats ApiVersions with a version that exists.",
        "KIP-511",
        Severity.ERROR,
        "ApiVersions again, after UNSUPPORTED_VERSION",
        _observe_fallback,
        "Repeat ApiVersions with the version that the error response names, or with version 0, "
        "on the same connection.",
    ),
    BehaviorRule(
        "software-name",
        "The client gives the name and the version of its software in ApiVersions.",
        "KIP-511",
        Severity.ADVICE,
        "a request to ApiVersions",
        _observe_names,
        "Send ApiVersions version 3 or later first, with the name and the version of the library.",
    ),
    BehaviorRule(
        "client-id",
        "Every request has a client id.",
        "Kafka's documentation of client.id and quotas",
        Severity.ADVICE,
        "a request",
        _observe_client_ids,
        "Put a client id into each request, with the name of the library as its default: quotas "
        "and logs go by it.",
    ),
)

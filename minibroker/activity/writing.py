"""Events as they are read: JSON objects by the schema, one a record.

Owns the text of an event; it must never know a clock, a topic or a process. Invariant: the fields
are those of ``activity.schema`` in its order, each of its type, and one that does not apply is left
out. Texts that many events have in common are made once and kept, in bounded number. The JSON is
put together by hand, as the general encoder takes several times as long.
"""

from __future__ import annotations

from json import dumps
from math import isfinite
from typing import Final, TypeVar

from minibroker.activity.events import Check, Client, Event, Happening, Peer, Request
from minibroker.activity.schema import VERSION, EventKind

KEPT_MAX: Final = 4096
"""Texts that are kept, of each sort."""

KEPT_CHARACTERS_MAX: Final = 1000
"""How long a text may be that is kept: clients choose what stands in it."""

Key = TypeVar("Key")

_CHECKS: Final = ("produce", "fetch", "request", "mutation")
_HAPPENING_FIELDS: Final = 6
_FLAGS: Final = ("false", "true")


class Writer:
    """Writes the events of one broker."""

    def __init__(self, broker: int, sample: float) -> None:
        self._broker = broker
        self._sample = number(sample)
        self._clients: dict[Client, str] = {}
        self._owners: dict[tuple[str, str], str] = {}

    def _head(self, kind: EventKind, sequence: int, time_us: int, clock_ms: int) -> str:
        return (
            f'{{"version":{VERSION},"kind":"{kind}","broker":{self._broker},"sequence":{sequence},'
            f'"time_us":{time_us},"clock_ms":{clock_ms}'
        )

    def event(self, event: Event, sequence: int) -> bytes:
        """What somebody told."""
        if len(event) == _HAPPENING_FIELDS:
            return self._happening(event, sequence).encode()
        return self._request(event, sequence).encode()

    def dropped(self, count: int, sequence: int, time_us: int, clock_ms: int) -> bytes:
        """That so many events are missing."""
        head = self._head(EventKind.DROPPED, sequence, time_us, clock_ms)
        return f'{head},"dropped":{count}}}'.encode()

    def _request(self, event: Request, sequence: int) -> str:
        (
            time_us, clock_ms, client, api_key, api_version, request_bytes, response_bytes, records,
            mutations, exempt, queue_ns, network_ns, io_ns, total_ns, checked_ns, late, checks,
            throttle_ms, error_code,
        ) = event  # fmt: skip
        text = (
            f"{self._head(EventKind.REQUEST, sequence, time_us, clock_ms)}"
            f'{self._clients.get(client) or self._client(client)},"api_key":{api_key},'
            f'"api_version":{api_version},"request_bytes":{request_bytes},'
            f'"response_bytes":{response_bytes}'
        )
        if records is not None:
            text += f',"records":{records}'
        if mutations is not None:
            wanted, refused, strict = mutations
            text += f',"mutations":{wanted},"mutations_refused":{refused},"strict":{_FLAGS[strict]}'
        text += (
            f',"exempt":{_FLAGS[exempt]},"queue_ns":{queue_ns},"network_ns":{network_ns},'
            f'"io_ns":{io_ns},"total_ns":{total_ns},"checked_ns":{checked_ns}'
        )
        if late is not None:
            text += f',"late_ns":{late[0]},"late_clock_ms":{late[1]}'
        if checks is not None:
            for name, check in zip(_CHECKS, checks, strict=True):
                if check is not None:
                    text += f',"{name}":{self._check(check)}'
        return f'{text},"throttle_ms":{throttle_ms},"error_code":{error_code}}}'

    def _happening(self, event: Happening, sequence: int) -> str:
        time_us, clock_ms, peer, happened, reason, delay_ms = event
        head = self._head(EventKind.CONNECTION, sequence, time_us, clock_ms)
        text = f'{head}{self._peer(peer)},"happened":"{happened}"'
        if reason is not None:
            text += f',"reason":{dumps(reason)}'
        if delay_ms is not None:
            text += f',"delay_ms":{delay_ms}'
        return text + "}"

    def _client(self, client: Client) -> str:
        listener, connection, ip, user, client_id = client
        text = (
            f"{self._peer((listener, connection, ip))}"
            f',"user":{dumps(user)},"client_id":{dumps(client_id)}'
        )
        _keep(self._clients, client, text)
        return text

    def _peer(self, peer: Peer) -> str:
        listener, connection, ip = peer
        return (
            f',"sample":{self._sample},"listener":{dumps(listener)},"connection":{connection},'
            f'"ip":{dumps(ip)}'
        )

    def _check(self, check: Check) -> str:
        user, client_id, rate, bound, throttle_ms, clock_ms = check
        text = self._owners.get((user, client_id)) or self._owner(user, client_id)
        text += f',"rate":{number(rate)}'
        if bound is not None:
            text += f',"bound":{number(bound)}'
        return f'{text},"throttle_ms":{throttle_ms},"clock_ms":{clock_ms}}}'

    def _owner(self, user: str, client_id: str) -> str:
        text = f'{{"user":{dumps(user)},"client_id":{dumps(client_id)}'
        _keep(self._owners, (user, client_id), text)
        return text


def _keep(texts: dict[Key, str], key: Key, text: str) -> None:
    if len(text) <= KEPT_CHARACTERS_MAX:
        if len(texts) >= KEPT_MAX:
            texts.clear()
        texts[key] = text


def number(value: float) -> str:
    """A figure with all its digits; JSON has no other than finite ones."""
    if not isfinite(value):
        value = 1.7976931348623157e308 if value > 0 else -1.7976931348623157e308
    return repr(float(value))

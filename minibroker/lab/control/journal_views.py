"""Entries and conditions of the journal as the control API has them.

Owns the conversion of queries and conditions to filters, and of entries to views. It must never
know how entries are collected. Invariant: conditions that can match no entry, such as an unknown
API, are errors with the name of the field.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from minibroker.broker.settings.names import similar_names
from minibroker.lab.control.journal_shapes import (
    ENTRIES_MAX,
    NUMBER_MAX,
    WAIT_MS_MAX,
    EntryConditions,
    EntryQuery,
    EntryView,
)
from minibroker.lab.control.schema import SIMILARITY_MIN, Fault, InvalidJson
from minibroker.lab.journal.entries import EntryKind, JournalEntry, api_key, api_name, decoded
from minibroker.lab.journal.filters import EntryFilter
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

_CODE_DIGITS_MAX: Final = 6


class EntryRequest(NamedTuple):
    """A query that was checked."""

    wanted: EntryFilter
    limit: int
    wait_ms: int
    frames: bool
    decode: bool


def read_query(query: EntryQuery) -> EntryRequest:
    """Check a query. Raises ``InvalidJson``."""
    faults: list[Fault] = []
    kinds = [each.strip() for each in query.kind.split(",") if each.strip()]
    faults += (
        _unknown("kind", each, [kind.value for kind in EntryKind])
        for each in kinds
        if each not in _KINDS
    )
    faults += _faults("", query.api, query.error)
    request = EntryRequest(
        EntryFilter(
            kinds=frozenset(EntryKind(each) for each in kinds if each in _KINDS),
            api=query.api or None,
            client_id=query.client_id or None,
            connection=query.connection or None,
            role=query.role or None,
            topic=query.topic or None,
            group=query.group or None,
            error=query.error or None,
            after=_number("after", query.after, NUMBER_MAX, faults),
        ),
        limit=_number("limit", query.limit, ENTRIES_MAX, faults),
        wait_ms=_number("wait_ms", query.wait_ms, WAIT_MS_MAX, faults),
        frames=_flag("frames", query.frames, faults),
        decode=_flag("decode", query.decode, faults),
    )
    if faults:
        raise InvalidJson(faults)
    return request


def read_conditions(path: str, conditions: EntryConditions, after: int) -> EntryFilter:
    """Return the filter of conditions in a field. Raises ``InvalidJson``."""
    faults = _faults(f"{path}.", conditions.api or "", conditions.error or "")
    if faults:
        raise InvalidJson(faults)
    kind = conditions.kind
    return EntryFilter(
        kinds=frozenset() if kind is None else frozenset({EntryKind(kind)}),
        api=conditions.api,
        client_id=conditions.client_id,
        connection=conditions.connection,
        role=conditions.role,
        topic=conditions.topic,
        group=conditions.group,
        error=conditions.error,
        details=conditions.details or {},
        after=after,
    )


def views(
    entries: Iterable[JournalEntry], *, frames: bool = False, decode: bool = False
) -> tuple[EntryView, ...]:
    """Return entries as the control API shows them."""
    return tuple(view_of(entry, frames=frames, decode=decode) for entry in entries)


def view_of(entry: JournalEntry, *, frames: bool = False, decode: bool = False) -> EntryView:
    """Return an entry as the control API shows it."""
    return EntryView(
        sequence=entry.sequence,
        clock_ms=entry.clock_ms,
        kind=entry.kind.value,
        role=entry.role,
        connection=entry.connection,
        client_id=entry.client_id,
        address=entry.address,
        api=entry.api,
        version=entry.version,
        correlation_id=entry.correlation_id,
        throttle_time_ms=entry.throttle_time_ms,
        stages=entry.stages,
        frame_bytes=entry.frame_bytes,
        frame=_base64(entry.frame) if frames and entry.frame is not None else None,
        details=entry.details,
        body=_plain(decoded(entry)) if decode else None,
    )


def dissected(entry: JournalEntry) -> str | None:
    """Return what each byte of an entry's frame means; None if the frame is not kept."""
    # Imported with the first frame: most brokers dissect none.
    from minibroker_protocol.dissect import Direction, dissect, render

    if entry.frame is None:
        return None
    is_request = entry.kind is EntryKind.REQUEST
    direction = Direction.REQUEST if is_request else Direction.RESPONSE
    key = api_key(entry.api or "")
    return render(
        dissect(entry.frame, direction=direction, api_key=key, version=entry.version)
    ).rstrip()


_KINDS: Final = frozenset(EntryKind)


def _faults(path: str, api: str, error: str) -> list[Fault]:
    faults = []
    if api and api_key(api) is None:
        faults.append(_unknown(f"{path}api", api, [api_name(key) for key in ApiKey]))
    is_code = error.removeprefix("-").isdecimal() and len(error) <= _CODE_DIGITS_MAX
    if error and not is_code and error.upper() not in ErrorCode.__members__:
        faults.append(_unknown(f"{path}error", error.upper(), list(ErrorCode.__members__)))
    return faults


def _unknown(path: str, name: str, known: list[str]) -> Fault:
    near = similar_names(name, known, count_max=1, similarity_min=SIMILARITY_MIN)
    advice = f"; did you mean {near[0]!r}?" if near else ""
    return Fault(path, f"{name[:60]!r} is not known{advice}")


def _number(path: str, text: str, highest: int, faults: list[Fault]) -> int:
    if text.isascii() and text.isdecimal() and int(text[:20]) <= highest:
        return int(text[:20])
    faults.append(Fault(path, f"must be a number from 0 to {highest}"))
    return 0


def _flag(path: str, text: str, faults: list[Fault]) -> bool:
    if text not in {"true", "false"}:
        faults.append(Fault(path, "must be true or false"))
    return text == "true"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _plain(value: Any) -> Any:
    """Decoded fields as JSON: bytes become base64; JSON has no infinite numbers."""
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value

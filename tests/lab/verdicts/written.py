"""Journals that tests write by hand: requests with their responses, at chosen times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minibroker.lab.journal.entries import EntryKind, JournalEntry, api_name
from minibroker.lab.verdicts.all_rules import RULE_OF
from minibroker.lab.verdicts.judging import ClientReport, Verdict, judge
from minibroker.lab.verdicts.traffic import ClientTraffic, traffic_of
from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import RequestHeader, encode_request_header, encode_response_header

CLIENT = "app"
HOST = "10.0.0.1"


class WrittenJournal:
    """Entries in the making; ``now`` is the clock in milliseconds."""

    def __init__(self, client_id: str | None = CLIENT) -> None:
        self.entries: list[JournalEntry] = []
        self.now = 1_000_000.0
        self.client_id = client_id
        self._correlation = 0

    def add(self, kind: EntryKind, **fields: Any) -> JournalEntry:
        entry = JournalEntry(
            sequence=len(self.entries) + 1, clock_ms=self.now, kind=kind, role="broker", **fields
        )
        self.entries.append(entry)
        return entry

    def open(self, connection: str, host: str = HOST) -> None:
        address = f"{host}:{5000 + len(self.entries)}"
        self.add(EntryKind.CONNECTION_OPENED, connection=connection, address=address)

    def close(self, connection: str, reason: str = "client_closed") -> None:
        self.add(EntryKind.CONNECTION_CLOSED, connection=connection, details={"reason": reason})

    def refuse(self, connection: str) -> None:
        """Open a connection that is closed before its first request."""
        self.open(connection)
        self.close(connection, "fault_rule")

    def clock(self, **details: Any) -> None:
        self.add(EntryKind.CLOCK, details=details)

    def fault(self, connection: str, **details: Any) -> None:
        self.add(
            EntryKind.FAULT,
            connection=connection,
            correlation_id=self._correlation,
            details=details,
        )

    def send(
        self,
        connection: str,
        request: Message,
        version: int,
        *,
        correlation_id: int | None = None,
        keep_frame: bool = True,
    ) -> JournalEntry:
        """Add a request."""
        key = request.__api_key__
        assert key is not None
        self._correlation = self._correlation + 1 if correlation_id is None else correlation_id
        header = RequestHeader(key, version, self._correlation, self.client_id)
        frame = encode_request_header(header) + encode(request, version)
        return self.add(
            EntryKind.REQUEST,
            connection=connection,
            client_id=self.client_id,
            address=f"{HOST}:5000",
            api=api_name(key),
            version=version,
            correlation_id=self._correlation,
            frame=frame if keep_frame else None,
        )

    def answer(self, sent: JournalEntry, response: Message) -> JournalEntry:
        """Add the response to a request."""
        key, version = response.__api_key__, sent.version
        assert key is not None
        assert version is not None
        assert sent.correlation_id is not None
        body = encode(response, version)
        return self.add(
            EntryKind.RESPONSE,
            connection=sent.connection,
            client_id=sent.client_id,
            api=sent.api,
            version=version,
            correlation_id=sent.correlation_id,
            throttle_time_ms=getattr(response, "throttle_time_ms", None),
            frame=encode_response_header(key, version, sent.correlation_id) + body,
        )

    def ask(
        self, connection: str, request: Message, version: int, response: Message, ms: float = 1
    ) -> tuple[JournalEntry, JournalEntry]:
        """Add a request and, some time later, its response."""
        sent = self.send(connection, request, version)
        self.now += ms
        return sent, self.answer(sent, response)

    def ask_versions(self, connection: str, ranges: Mapping[ApiKey, tuple[int, int]]) -> None:
        """Add ApiVersions with the advertised versions."""
        keys = [
            ApiVersion(api_key=int(key), min_version=low, max_version=high)
            for key, (low, high) in ranges.items()
        ]
        request = ApiVersionsRequest(client_software_name="app", client_software_version="1.0")
        self.ask(connection, request, 3, ApiVersionsResponse(api_keys=keys))

    def ask_metadata(self, connection: str) -> None:
        self.ask(connection, MetadataRequest(topics=[]), 9, MetadataResponse())

    @property
    def traffic(self) -> ClientTraffic:
        """The traffic of the client."""
        found = traffic_of(self.entries, CLIENT)
        assert isinstance(found, ClientTraffic)
        return found

    def report(self) -> ClientReport:
        return judge(self.entries, CLIENT)

    def verdict(self, rule: str) -> Verdict:
        """What one rule says."""
        [found] = judge(self.entries, CLIENT, rules=[RULE_OF[rule]]).verdicts
        return found

    def findings(self, rule: str) -> list[str]:
        """The findings of one rule, which must have been observed."""
        verdict = self.verdict(rule)
        assert verdict.situations > 0
        sequences = {entry.sequence for entry in self.entries}
        assert all(sequences.issuperset(each.evidence) for each in verdict.findings)
        return [each.text for each in verdict.findings]


def batch(
    value: bytes, *, producer_id: int = -1, epoch: int = -1, sequence: int = -1, count: int = 1
) -> bytes:
    """A batch of equal records."""
    return build_batch(
        [Record(offset=at, value=value) for at in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )

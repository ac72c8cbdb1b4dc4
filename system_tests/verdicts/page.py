"""The page with the verdicts on all clients.

Owns its layout. It must never judge or run a client. Invariant: every rule has a row and every
client a column; a finding that is shown has an excerpt of the journal, and what was left out is
counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from minibroker.journal.entries import EntryKind, JournalEntry
from minibroker.verdicts.all_rules import RULES
from minibroker.verdicts.judging import ClientReport, Finding, RuleOutcome, Verdict
from minibroker.verdicts.report import escaped
from system_tests.verdicts.known_issues import KNOWN_ISSUES

SHOWN_FINDINGS: Final = 2
"""Findings of each rule and client that the page shows."""
SHOWN_ENTRIES: Final = 4
"""Entries of the journal that the page shows of a finding."""

_HEAD: Final = """\
# Verdicts on clients

<!-- Written by `python -m system_tests.verdicts`; don't edit. -->

Every client went through the same scenario on a broker of its own: a group is joined while its
coordinator is not available, then throttles without muting, errors of an old leader and an old
coordinator, a rebalance, a lost membership, errors that can be retried for three seconds and four
times for a second and a half, and seven seconds in which new connections are accepted and reset, as
by a load balancer without a server. A process has a producer and a consumer with the library's
defaults, except for a session timeout of six seconds, and fetches that wait for 50 ms at most. SASL
sessions of four seconds, ApiVersions with the persona of Kafka 2.0, and four outages of a second
and a half while only the producer is used, are judged in runs of their own.

The [guide](guides/judge-a-client.md) explains the rules, and how to judge your own client. A broken
rule is not always a defect: some are recommendations of a KIP, and what a client does also depends
on its configuration. The broker protects itself in any case, for example by muting throttled
connections. While the errors of an old leader last, metadata names the same leader as before, as in
a cluster whose metadata is behind.
"""


class ClientResult(NamedTuple):
    """What a client did in the scenario."""

    library: str
    name: str
    """The library with its version."""
    report: ClientReport
    entries: Sequence[JournalEntry]


def page(results: Sequence[ClientResult]) -> str:
    """Write the page."""
    lines = [_HEAD, *_table(results)]
    for result in results:
        lines += ["", f"## {escaped(result.name)}", "", *_client_lines(result)]
    return "\n".join([*lines, ""])


def _table(results: Sequence[ClientResult]) -> list[str]:
    names = " | ".join(escaped(each.name) for each in results)
    lines = [f"| Rule | {names} |", f"| --- |{' --- |' * len(results)}"]
    for rule in RULES:
        cells = [_cell(_verdict(each.report, rule.id)) for each in results]
        lines.append(f"| `{rule.id}` ({escaped(rule.source)}) | {' | '.join(cells)} |")
    return lines


def _verdict(report: ClientReport, rule_id: str) -> Verdict:
    return next(each for each in report.verdicts if each.rule.id == rule_id)


def _cell(verdict: Verdict) -> str:
    if verdict.outcome is RuleOutcome.NOT_OBSERVED:
        return "not observed"
    if verdict.outcome is RuleOutcome.KEPT:
        return "kept"
    return f"**broken**, {verdict.broken} of {verdict.situations}"


def _client_lines(result: ClientResult) -> list[str]:
    report = result.report
    lines = [f"{report.requests} requests on {report.connections} connections."]
    by_sequence = {entry.sequence: entry for entry in result.entries}
    start_ms = result.entries[0].clock_ms if result.entries else 0.0
    if not report.broken:
        return [*lines, "It broke no rule."]
    for verdict in report.broken:
        lines += ["", f"### {escaped(result.library)}: {verdict.rule.id}", ""]
        lines += [f"{verdict.rule.statement} ({verdict.rule.severity})", ""]
        lines += _issue_lines(result.library, verdict)
        for finding in verdict.findings[:SHOWN_FINDINGS]:
            lines += _finding_lines(finding, by_sequence, start_ms)
        if verdict.broken > SHOWN_FINDINGS:
            lines += [f"- {verdict.broken - SHOWN_FINDINGS} more"]
    return lines


def _issue_lines(library: str, verdict: Verdict) -> list[str]:
    issues = KNOWN_ISSUES.get((library, verdict.rule.id), ())
    lines = [f"Known: [{each.name}]({each.url}), {escaped(each.title)}." for each in issues]
    return [*lines, ""] if lines else []


def _finding_lines(
    finding: Finding, entries: Mapping[int, JournalEntry], start_ms: float
) -> list[str]:
    shown = [entries[each] for each in finding.evidence[:SHOWN_ENTRIES] if each in entries]
    lines = [f"- {escaped(finding.text)}"]
    if shown:
        excerpt = [f"  {_entry_line(entry, start_ms)}" for entry in shown]
        lines += ["", "  ```", *excerpt, "  ```", ""]
    return lines


def _entry_line(entry: JournalEntry, start_ms: float) -> str:
    parts = [f"{entry.sequence:>6} {(entry.clock_ms - start_ms) / 1000:8.3f} s", entry.kind.value]
    if entry.api is not None:
        parts.append(f"{entry.api} v{entry.version}")
    if entry.correlation_id is not None and entry.kind is not EntryKind.FAULT:
        parts.append(f"correlation id {entry.correlation_id}")
    if entry.throttle_time_ms:
        parts.append(f"throttle time {entry.throttle_time_ms} ms")
    if "reason" in entry.details:
        parts.append(str(entry.details["reason"]))
    return "  ".join(parts)

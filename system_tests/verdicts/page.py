"""The page with the verdicts on all clients.

Owns its layout. It must never judge or run a client. Invariant: every rule has a row and every
client a column; a finding that is shown has an excerpt of its journal, counts that vary between
runs are shown as ranges, and what was left out is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from minibroker.lab.journal.entries import EntryKind, JournalEntry
from minibroker.lab.verdicts.all_rules import RULES
from minibroker.lab.verdicts.judging import Finding, Verdict
from minibroker.lab.verdicts.report import escaped
from minibroker.lab.verdicts.situations import BehaviorRule, Severity
from system_tests.verdicts.causes import SCENARIO_CAUSES
from system_tests.verdicts.known_sources import KNOWN_SOURCES

SHOWN_FINDINGS: Final = 2
"""Findings of each rule and client that the page shows."""
SHOWN_ENTRIES: Final = 4
"""Entries of the journal that the page shows of a finding."""

_HEAD: Final = """\
# Verdicts on clients

<!-- Written by `python -m system_tests.verdicts`; don't edit. -->

Every client went through the same scenario on a broker of its own, {runs}: a group is joined while
its coordinator is not available and then still loading, then throttles without muting, errors of an
old leader and an old coordinator, a rebalance, a lost membership, errors that can be retried for
three seconds and four times for a second and a half, and seven seconds in which new connections are
accepted and reset, as by a load balancer without a server. A process has a producer and a consumer
with the library's defaults, except for idempotence, a session timeout of six seconds with a
heartbeat each second, commits every 100 ms, and fetches that wait for 50 ms at most (sarama: 100
ms). SASL sessions of four seconds, ApiVersions with the persona of Kafka 2.0, four outages of a
second and a half while only the producer is used, and a producer whose state is lost, have brokers
of their own. One client ran at a time.

The [guide](guides/judge-a-client.md) explains the rules, and how to judge your own client. A broken
rule is not always a defect: some are recommendations of a KIP, and what a client does also depends
on its configuration. Each section says what the scenario contributes. The broker protects itself in
any case, for example by muting throttled connections.

A finding that is more than an advice names a public issue, or the lines of the client's code. If a
rule was broken in some runs only, nothing is concluded; each client names these rules. A busy
machine can hide a finding: loops become slower than the limit, and waits without jitter vary.

"2 of 7" are broken situations of all situations of the rule. "1 to 3 of 5 to 7" are the fewest and
the most of all runs: how often a client gets into a situation depends on its timing.
"""


class JudgedJournal(NamedTuple):
    """A journal and what rules say about it."""

    situation: str
    """What the broker did in it; empty for the scenario."""
    verdicts: Sequence[Verdict]
    entries: Sequence[JournalEntry]


ScenarioRun = Sequence[JudgedJournal]
"""The journals of one run of the scenario."""


class ClientResult(NamedTuple):
    """What a client did in the runs of the scenario."""

    library: str
    name: str
    """The library with its version."""
    runs: Sequence[ScenarioRun]


class RuleCount(NamedTuple):
    """Situations of a rule in one run."""

    broken: int
    situations: int


def _verdicts(run: ScenarioRun, rule: BehaviorRule) -> Iterator[tuple[JudgedJournal, Verdict]]:
    for journal in run:
        for verdict in journal.verdicts:
            if verdict.rule.id == rule.id:
                yield journal, verdict


def _counts(result: ClientResult, rule: BehaviorRule) -> list[RuleCount]:
    """The situations of a rule in each run."""
    return [
        RuleCount(
            sum(verdict.broken for _, verdict in _verdicts(run, rule)),
            sum(verdict.situations for _, verdict in _verdicts(run, rule)),
        )
        for run in result.runs
    ]


def page(results: Sequence[ClientResult]) -> str:
    """Write the page."""
    runs = max((len(each.runs) for each in results), default=0)
    head = _HEAD.format(runs="once" if runs == 1 else f"{runs} times")
    lines = [head, *_table(results)]
    for result in results:
        lines += ["", f"## {escaped(result.name)}", "", *_client_lines(result)]
    lines += ["", "## What an author can do", ""]
    lines += [f"- `{rule.id}`: {escaped(rule.remedy)}" for rule in RULES]
    return "\n".join([*lines, ""])


def _table(results: Sequence[ClientResult]) -> list[str]:
    names = " | ".join(escaped(each.name) for each in results)
    lines = [f"| Rule | {names} |", f"| --- |{' --- |' * len(results)}"]
    for rule in RULES:
        cells = [_cell(_counts(each, rule)) for each in results]
        lines.append(f"| `{rule.id}` ({escaped(rule.source)}) | {' | '.join(cells)} |")
    return lines


def _cell(counts: Sequence[RuleCount]) -> str:
    observed = [each for each in counts if each.situations]
    broken = [each for each in observed if each.broken]
    if not observed:
        return "not observed"
    if not broken:
        return "kept"
    if len(broken) < len(counts):
        return f"**broken** in {len(broken)} of {len(counts)} runs, {_range(broken)}"
    return f"**broken**, {_range(broken)}"


def _range(counts: Sequence[RuleCount]) -> str:
    """Write the fewest and the most of several runs."""
    texts = []
    for values in zip(*counts, strict=True):
        low, high = min(values), max(values)
        texts.append(f"{low}" if low == high else f"{low} to {high}")
    return " of ".join(texts)


def _client_lines(result: ClientResult) -> list[str]:
    lines: list[str] = []
    varied = []
    for rule in RULES:
        counts = _counts(result, rule)
        broken = sum(each.broken > 0 for each in counts)
        if 0 < broken < len(counts):
            varied.append(f"`{rule.id}` (broken in {broken} of {len(counts)} runs)")
        elif broken:
            lines += ["", f"### {escaped(result.library)}: {rule.id}", ""]
            lines += [f"{rule.statement} ({rule.severity}; {_cell(counts)})", ""]
            lines += _source_lines(result.library, rule)
            lines += [f"What the scenario contributes: {SCENARIO_CAUSES[rule.id]}", ""]
            lines += [f"What an author can do: {escaped(rule.remedy)}", ""]
            lines += _finding_lines(result, rule)
    lines = lines[1:] or ["It broke no rule."]
    if varied:
        lines += ["", f"Varied between the runs: {', '.join(varied)}."]
    return lines


def _source_lines(library: str, rule: BehaviorRule) -> list[str]:
    """Where it is known, or where the client's code does it. Raises ``ValueError`` without either.

    What a rule advises needs no reason.
    """
    sources = KNOWN_SOURCES.get((library, rule.id), ())
    if not sources and rule.severity is not Severity.ADVICE:
        raise ValueError(f"{rule.id} accuses {library}, and nothing in known_sources shows why")
    lines = [f"Known: [{each.name}]({each.url}), {escaped(each.text)}." for each in sources]
    return [*lines, ""] if lines else []


def _finding_lines(result: ClientResult, rule: BehaviorRule) -> list[str]:
    """Write findings of the first run in which the rule was broken."""
    for run in result.runs:
        found = [
            (journal, finding)
            for journal, verdict in _verdicts(run, rule)
            for finding in verdict.findings
        ]
        if found:
            broken = sum(verdict.broken for _, verdict in _verdicts(run, rule))
            shown = found[:SHOWN_FINDINGS]
            lines = [line for each in shown for line in _excerpt(*each)]
            left_out = broken - len(shown)
            return [*lines, f"- {left_out} more"] if left_out else lines
    raise AssertionError(f"{result.name} has no finding of {rule.id}")


def _excerpt(journal: JudgedJournal, finding: Finding) -> list[str]:
    """Write a finding with its entries. The times begin with the journal."""
    by_sequence = {entry.sequence: entry for entry in journal.entries}
    start_ms = journal.entries[0].clock_ms
    shown = [by_sequence[each] for each in finding.evidence[:SHOWN_ENTRIES]]
    place = f" ({journal.situation})" if journal.situation else ""
    excerpt = [f"  {_entry_line(entry, start_ms)}" for entry in shown]
    return [f"- {escaped(finding.text)}{place}", "", "  ```", *excerpt, "  ```", ""]


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

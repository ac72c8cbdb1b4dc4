"""A judgement for readers: text, Markdown and JSON.

Owns the wording. It must never judge. Invariant: the three forms have the same verdicts and
findings, and text of clients is escaped in Markdown.
"""

from __future__ import annotations

import re
from typing import Any, Final

from minibroker.lab.verdicts.judging import ClientReport, Finding, RuleOutcome, Verdict

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>|#])")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def report_text(report: ClientReport) -> str:
    """Write a report for a terminal."""
    lines = [_head(report)]
    for outcome, title in _TITLES:
        found = [each for each in report.verdicts if each.outcome is outcome]
        if found:
            lines += ["", title]
        for verdict in found:
            lines += _verdict_lines(verdict)
    return "\n".join([*lines, "", _last_line(report)])


_TITLES: Final = (
    (RuleOutcome.BROKEN, "Broken:"),
    (RuleOutcome.ALLOWED, "Broken, and allowed:"),
    (RuleOutcome.KEPT, "Kept:"),
    (
        RuleOutcome.UNKNOWN,
        "Not broken in what the journal has, but entries are lost:",
    ),
    (RuleOutcome.NOT_OBSERVED, "Not observed, so nothing is known:"),
)


def _head(report: ClientReport) -> str:
    head = (
        f"client id {printable(report.client_id)}: {report.requests} requests on "
        f"{report.connections} connections"
    )
    if report.dropped:
        head += f"; {report.dropped} entries of the journal are lost"
    return head


def _verdict_lines(verdict: Verdict) -> list[str]:
    rule = verdict.rule
    if verdict.outcome is RuleOutcome.NOT_OBSERVED:
        return [f"  {rule.id}: needs {rule.situation}"]
    if verdict.outcome in {RuleOutcome.KEPT, RuleOutcome.UNKNOWN}:
        return [f"  {rule.id}: {_situations(verdict)}"]
    lines = [
        f"  {rule.id} ({rule.severity}, {rule.source}): {verdict.broken} of {_situations(verdict)}",
        f"    {rule.statement}",
    ]
    lines += [f"    - {_finding_text(each)}" for each in verdict.findings]
    if verdict.broken > len(verdict.findings):
        lines.append(f"    ... and {verdict.broken - len(verdict.findings)} more")
    return [*lines, f"    What an author can do: {rule.remedy}"]


def _situations(verdict: Verdict) -> str:
    return "1 situation" if verdict.situations == 1 else f"{verdict.situations} situations"


def _finding_text(finding: Finding) -> str:
    entries = ", ".join(map(str, finding.evidence))
    name = "entry" if len(finding.evidence) == 1 else "entries"
    return f"{printable(finding.text)} [{name} {entries}]"


def _last_line(report: ClientReport) -> str:
    if report.behaves_well:
        return "no finding"
    if not report.broken:
        return f"unknown: no finding, but {report.dropped} entries of the journal are lost"
    return f"broken: {', '.join(each.rule.id for each in report.broken)}"


def report_json(report: ClientReport) -> dict[str, Any]:
    """Return a report as an object for JSON."""
    return {
        "client_id": report.client_id,
        "behaves_well": report.behaves_well,
        "connections": report.connections,
        "requests": report.requests,
        "dropped": report.dropped,
        "verdicts": [
            {
                "rule": each.rule.id,
                "outcome": str(each.outcome),
                "statement": each.rule.statement,
                "source": each.rule.source,
                "severity": str(each.rule.severity),
                "remedy": each.rule.remedy,
                "situations": each.situations,
                "broken": each.broken,
                "findings": [
                    {"text": finding.text, "evidence": list(finding.evidence)}
                    for finding in each.findings
                ],
            }
            for each in report.verdicts
        ],
    }


def report_markdown(report: ClientReport) -> str:
    """Write a page about one client."""
    lines = [
        f"# Verdicts on {escaped(report.client_id)}",
        "",
        f"{escaped(_head(report).removeprefix('client id '))}.",
        "",
        "| Rule | Verdict | Situations | Broken | Follows |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{each.rule.id}` | {each.outcome} | {each.situations} | {each.broken} | "
        f"{escaped(each.rule.source)} |"
        for each in report.verdicts
    ]
    for verdict in report.verdicts:
        if verdict.findings:
            lines += ["", f"## {verdict.rule.id}", "", *findings_markdown(verdict)]
    return "\n".join([*lines, ""])


def findings_markdown(verdict: Verdict) -> list[str]:
    """Write the findings of one rule as lines of Markdown."""
    lines = [f"{verdict.rule.statement} ({verdict.rule.source}; {verdict.rule.severity})", ""]
    lines += [f"- {escaped(_finding_text(each))}" for each in verdict.findings]
    if verdict.broken > len(verdict.findings):
        lines.append(f"- {verdict.broken - len(verdict.findings)} more")
    return [*lines, "", f"What an author can do: {escaped(verdict.rule.remedy)}"]


def escaped(text: str) -> str:
    """Escape what has a meaning in Markdown."""
    return _SPECIAL.sub(r"\\\1", printable(text))


def printable(text: str) -> str:
    """Replace control characters, which a client id may contain."""
    return _CONTROL.sub("?", text)

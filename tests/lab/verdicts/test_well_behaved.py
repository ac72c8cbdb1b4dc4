from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.verdicts.all_rules import RULE_OF
from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker.lab.verdicts.report import report_text
from tests.lab.verdicts.well_behaved import WellBehavedClient

NEVER_DRAWN = {"api-versions-fallback", "reauthentication"}


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
def test_traffic_of_a_well_behaved_client_has_no_finding(seed: int, steps: int) -> None:
    client = WellBehavedClient(seed)
    client.run(steps)
    report = client.journal.report()
    assert report.behaves_well, report_text(report)


def test_situations_of_every_rule_are_drawn() -> None:
    unknown = set(RULE_OF)
    for seed in range(10):
        client = WellBehavedClient(seed)
        client.run(100)
        verdicts = client.journal.report().verdicts
        unknown -= {each.rule.id for each in verdicts if each.outcome is RuleOutcome.KEPT}
    assert unknown == NEVER_DRAWN

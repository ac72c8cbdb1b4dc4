"""All rules of good behavior, in the order of reports.

Owns the list. It must never judge. Invariant: every id is unique, since users allow rules by id.
"""

from __future__ import annotations

from typing import Final

from minibroker.lab.verdicts import (
    commit_rules,
    connection_rules,
    consumer_group_rules,
    consumer_rules,
    group_rules,
    metadata_rules,
    producer_rules,
    retry_rules,
    session_rules,
    share_group_rules,
    throttle_rules,
    version_rules,
)

RULES: Final = (
    *version_rules.RULES,
    *throttle_rules.RULES,
    *connection_rules.RULES,
    *retry_rules.RULES,
    *metadata_rules.RULES,
    *producer_rules.RULES,
    *commit_rules.RULES,
    *group_rules.RULES,
    *consumer_group_rules.RULES,
    *share_group_rules.RULES,
    *consumer_rules.RULES,
    *session_rules.RULES,
)
"""All rules."""

RULE_OF: Final = {rule.id: rule for rule in RULES}

"""What one run of a whole broker consists of: its clients, its faults, and its length.

Owns the distribution of runs. It must never know how clients or faults act. Pure. Invariant: a plan
depends on the seed alone. Most runs are short, because many short runs find more than a few long
ones; some are long enough for logs to grow, be compacted and be recovered several times.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple


class Length(NamedTuple):
    """How long a run is."""

    pauses: int
    """Length of the safety phase in pauses, because faults advance the clock."""
    calm_s: float
    """Time without faults in which copies, cleanings and completions of transactions follow."""
    transactions_max: int
    """Largest number of transactions of one producer."""
    batches_max: int
    """Largest number of batches of one idempotent producer."""


LENGTHS: Final = {
    Length(pauses=12, calm_s=0.5, transactions_max=3, batches_max=6): 80,
    Length(pauses=40, calm_s=1.0, transactions_max=6, batches_max=15): 17,
    Length(pauses=120, calm_s=3.0, transactions_max=15, batches_max=30): 3,
}
"""Weights of the lengths, in percent."""
CASTS: Final = {(True, False): 45, (False, True): 35, (True, True): 20}
"""Weights of runs with transactions, with a consumer group, and with both, in percent."""
FAULTS: Final = {(True, True): 70, (True, False): 15, (False, True): 12, (False, False): 3}
"""Weights of runs with fault rules, with killed processes, with both and neither, in percent."""
CONSUMER_GROUPS_SHARE: Final = 0.4
"""Share of runs without a classic group that have a consumer group."""


SHARE_GROUPS_SHARE: Final = 0.3
"""Share of runs with another group that have a share group, too."""
STREAMS_GROUPS_SHARE: Final = 0.3
"""Share of runs with another group, but no share group, that have a streams group, too."""
MIXED_GROUPS_SHARE: Final = 0.2
"""Share of runs with another group, but no streams group, that have a mixed group, too."""


class RunPlan(NamedTuple):
    """What one run consists of."""

    length: Length
    has_transactions: bool
    has_group: bool
    has_rules: bool
    has_kills: bool
    has_consumer_group: bool
    """Whether there is a consumer group (KIP-848), in a run without a classic one."""
    has_share_group: bool
    """Whether there is a share group (KIP-932) in addition to the other group."""
    has_streams_group: bool = False
    """Whether there is a streams group (KIP-1071) in addition to the other group."""
    has_mixed_group: bool = False
    """Whether there is another group, with classic members and members of KIP-848 together."""
    members: int = 0
    """Members of each group; 0 for a few."""


def crowd_plan(members: int) -> RunPlan:
    """A short run with all faults, and groups of all types with this many members each."""
    return RunPlan(
        length=min(LENGTHS),
        has_transactions=False,
        has_group=False,
        has_rules=True,
        has_kills=True,
        has_consumer_group=True,
        has_share_group=True,
        has_streams_group=True,
        has_mixed_group=True,
        members=members,
    )


def draw_plan(seed: int) -> RunPlan:
    """Draw the plan of a run."""
    random = Random(f"{seed} plan")
    [length] = random.choices(tuple(LENGTHS), tuple(LENGTHS.values()))
    [casts] = random.choices(tuple(CASTS), tuple(CASTS.values()))
    [faults] = random.choices(tuple(FAULTS), tuple(FAULTS.values()))
    _, has_group = casts
    has_consumer_group = not has_group and random.random() < CONSUMER_GROUPS_SHARE
    is_shared = random.random() < SHARE_GROUPS_SHARE
    has_share_group = is_shared and (has_group or has_consumer_group)
    has_streams_group = random.random() < STREAMS_GROUPS_SHARE and not has_share_group
    has_mixed_group = random.random() < MIXED_GROUPS_SHARE and not has_streams_group
    has_other = has_group or has_consumer_group
    return RunPlan(
        length,
        *casts,
        *faults,
        has_consumer_group,
        has_share_group,
        has_streams_group and has_other,
        has_mixed_group and has_other,
    )

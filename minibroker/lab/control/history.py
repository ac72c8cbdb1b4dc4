"""The recent past of usage and lag, so that a page shows plots at once when it is opened.

Owns how often which values are sampled, and how many are kept. It must never know a page. The
invariant: the memory is bounded by the limits below. Kafka leaves histories to monitoring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from minibroker.broker.process.messages import CommittedOffsetsRequest

if TYPE_CHECKING:
    from minibroker.lab.control.broker import ControlledBroker

USAGE_SAMPLE_S: Final = 2
"""Real time between two samples of the usage of quotas."""

USAGE_SAMPLES_MAX: Final = 60
"""Samples of usage that are kept: two minutes."""

USAGE_COUNTERS_MAX: Final = 200
"""Counters of quotas with a history, the most recently used first."""

LAG_SAMPLE_S: Final = 4
"""Real time between two samples of the lag of groups, a multiple of ``USAGE_SAMPLE_S``."""

LAG_SAMPLES_MAX: Final = 150
"""Samples of lag that are kept: ten minutes."""

LAG_GROUPS_MAX: Final = 200
"""Groups with a history of their lag."""

OFFSETS_MAX: Final = 1000
"""Committed offsets of each worker's groups in one sample; groups beyond are left out."""

CommittedOffsets: TypeAlias = dict[str, dict[tuple[str, int], int]]
"""Offsets by topic and partition of each group."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class History(Generic[_Key, _Value]):
    """The last samples of some values, at equal intervals."""

    def __init__(self, samples_max: int, keys_max: int) -> None:
        self._keys_max = keys_max
        self._samples: deque[dict[_Key, _Value]] = deque(maxlen=samples_max)
        self.sampled_at = 0.0
        """Time of the last sample, as given to ``add``."""

    def add(self, values: Mapping[_Key, _Value], now: float) -> None:
        """Add the present values; beyond the maximum number of keys, the first ones are kept."""
        self._samples.append(dict(list(values.items())[: self._keys_max]))
        self.sampled_at = now

    def of(self, key: _Key) -> tuple[_Value | None, ...]:
        """Return the values of a key, oldest first, from the first that is known."""
        values = [sample.get(key) for sample in self._samples]
        known = next((at for at, value in enumerate(values) if value is not None), len(values))
        return tuple(values[known:])

    def keys(self) -> list[_Key]:
        """Return all keys of which a value is kept, in the order of their first one."""
        return list(dict.fromkeys(key for sample in self._samples for key in sample))


async def committed_offsets(broker: ControlledBroker) -> CommittedOffsets:
    """Return the committed offsets of all groups, up to the limit."""
    request = CommittedOffsetsRequest(OFFSETS_MAX)
    offsets: CommittedOffsets = {}
    for answer in (await broker.publisher.request_all(request, broker.workers)).values():
        offsets |= answer
    return offsets

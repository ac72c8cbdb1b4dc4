"""What a metric is: its name, kind, labels, unit and meaning.

It must never know a value or which metrics there are. Invariant: plain data.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class MetricKind(Enum):
    """Type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric family.

    ``divisor`` turns what processes count (nanoseconds, whole numbers) into the published
    unit (seconds). ``jmx`` is Kafka's name for it, or empty.
    """

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    meaning: str
    jmx: str = ""
    divisor: int = 1

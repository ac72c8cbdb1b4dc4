"""The reference page of all metrics, written from the catalogue.

Owns the layout of ``docs/reference/metrics.md``, which running this module prints.
Must never say about a metric what the catalogue doesn't. The invariant: the committed page is what
this module prints, which a test holds. Answers to the monitoring page of Kafka's documentation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from minibroker.broker.metrics.definitions import (
    GROUP_PARTITIONS_MAX,
    METRICS,
    SIZE_BUCKETS_BYTES,
    TIME_BUCKETS_NS,
    TOPIC_PARTITIONS_MAX,
    TOPICS_MAX,
    CloseReason,
    Metric,
    MetricKind,
)

_INTRODUCTION = """\
# Metrics

<!-- Written by `python -m minibroker.broker.metrics.reference`; don't edit. -->

`GET /metrics` of the control API answers in Prometheus' text format for the whole broker, all its
processes together. Names, labels and meanings are stable.

- A histogram `x` has the usual series `x_bucket{le=…}`, `x_sum` and `x_count`.
- `api` is Kafka's name of the request, e.g. `Produce`; requests with an api key that Kafka doesn't
  have are `unknown`. An API shows up with its first request.
- `process` is a role and an index, e.g. `processor-0`, `worker-1`.
- `topic` and `partition`: at most %(logs)d logs are shown one by one; the sizes of the rest are
  summed under topic `(other)`, partition `-1`. Each process counts bytes and records of at most
  %(topics)d topics one by one, and of the rest as topic `(other)`; a topic's counters end with it.
- `group`: the %(commits)d partitions whose offsets were committed last are shown.
- `reason` is one of %(reasons)s.
- Times are bucketed at %(times)s seconds, sizes at %(sizes)s bytes.
- Counters go on when a process is killed and started again; what it counted after its last
  scrape is lost. When the controller itself is killed, the counts of other processes' earlier
  lives are forgotten; Prometheus' `rate()` takes that for the restart that it is.
"""


def page() -> str:
    """The whole page as Markdown."""
    return (
        _INTRODUCTION
        % {
            "logs": TOPIC_PARTITIONS_MAX,
            "topics": TOPICS_MAX,
            "commits": GROUP_PARTITIONS_MAX,
            "reasons": ", ".join(f"`{reason.value}`" for reason in CloseReason),
            "times": ", ".join(f"{bound / 1e9:g}" for bound in TIME_BUCKETS_NS),
            "sizes": ", ".join(str(bound) for bound in SIZE_BUCKETS_BYTES),
        }
        + "\n"
        + "\n".join(_rows())
        + "\n"
    )


def _rows() -> Iterator[str]:
    yield "| Name | Type | Labels | Meaning | In Kafka |"
    yield "| --- | --- | --- | --- | --- |"
    for metric in METRICS:
        yield _row(metric)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return (
        f"| `{metric.name}` | {_KINDS[metric.kind]} | {labels} | {metric.meaning} | {metric.jmx} |"
    )


_KINDS = {
    MetricKind.COUNTER: "counter",
    MetricKind.GAUGE: "gauge",
    MetricKind.HISTOGRAM: "histogram",
}


if __name__ == "__main__":
    sys.stdout.write(page())

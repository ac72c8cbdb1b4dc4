"""Amounts of events as Spark's columns, for jobs that aggregate in Spark.

Owns nothing but the conversion to Spark: which events count is decided by ``quota_amounts``, so
that all jobs show the same figures. It must never know what is done with an amount. Kafka's
``bytes-out`` metrics count likewise what was sent.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from minibroker.pipeline.quota_amounts import is_held_back


def sent_bytes() -> Column:
    """The size of an event's response as it was sent; null if it has none."""
    held_back = is_held_back(F.col("api_key"), F.col("exempt"), F.col("throttle_ms"))
    return F.when(held_back, 0).otherwise(F.col("response_bytes"))

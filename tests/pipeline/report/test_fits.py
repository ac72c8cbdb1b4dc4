from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from minibroker.broker.quotas.file import parse
from minibroker.pipeline.report.fits import fits
from minibroker.pipeline.scan import scan_frame
from tests.pipeline.report.sample_events import check, connection, request, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from minibroker.pipeline.report.figures import Fit

FILE = """
# 99 % of busy seconds
# and a quarter more
--alter --user alice --add-config producer_byte_rate=2000
--alter --user alice --client etl --add-config producer_byte_rate=500,request_percentage=50
--alter --ip 10.0.0.1 --add-config connection_creation_rate=10
--alter --user nobody --add-config producer_byte_rate=1
--alter --user-defaults --add-config producer_byte_rate=1
"""


def fits_of(activity: DataFrame, text: str) -> tuple[tuple[Fit, ...], int]:
    return fits(activity, parse(text, "recommended"), partial(scan_frame, activity), 100)


def test_fit_pairs_quota_with_observed_rates(spark: SparkSession) -> None:
    seen = [
        request(second * 1000, api_key=0, exempt=False, request_bytes=1000,
                produce=check(user="alice", rate=1.0, bound=4000.0 + second))
        for second in range(30)
    ]  # fmt: skip
    come = [connection(second * 1000, "accepted", ip="10.0.0.1") for second in range(30)]
    found, count = fits_of(table(spark, [*seen, *come]), FILE)
    assert count == 5
    assert [(fit.entity, fit.key) for fit in found] == [
        ("user alice, client etl", "producer_byte_rate"),
        ("user alice", "producer_byte_rate"),
        ("address 10.0.0.1", "connection_creation_rate"),
        ("user alice, client etl", "request_percentage"),
    ]
    alice = found[1]
    assert (alice.recommended, alice.in_force) == (2000, 4029)
    assert alice.reason == "99 % of busy seconds and a quarter more"
    # A broker's average over eleven seconds, or the ten before, with these bytes in each.
    assert (alice.p50, alice.p99, alice.most) == pytest.approx((1000, 1000, 1000))
    assert found[0].in_force is None
    assert found[2].most == pytest.approx(1)


def test_fits_of_default_quotas_are_empty(spark: SparkSession) -> None:
    text = "--alter --user-defaults --add-config producer_byte_rate=1\n"
    assert fits_of(table(spark, []), text) == ((), 0)

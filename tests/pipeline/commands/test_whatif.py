from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from minibroker.pipeline.commands import base
from minibroker.pipeline.commands.whatif import whatif
from tests.pipeline.whatif.test_job import in_buckets

pytestmark = pytest.mark.usefixtures("compiled_replay")

TIGHT = "--alter --entity-type {} --entity-default --add-config producer_byte_rate=200\n"


def test_whatif_prints_summary_and_writes_rows(
    spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr(base, "session", lambda *_, **__: nullcontext(spark))
    table = in_buckets(tmp_path / "activity")
    (tmp_path / "users").write_text(TIGHT.format("users"))
    into, decisions = tmp_path / "out", tmp_path / "decided"
    words = ["--table", table, "--closed-loop", "--into", str(into), "--decisions", str(decisions)]
    words += ["--quotas", str(tmp_path / "users")]
    result = CliRunner().invoke(whatif, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "users: throttles" in result.output
    assert "users, closed loop: throttles" in result.output
    assert "total throttle time under" in result.output
    assert "The first 12 s of each broker only filled the counters" in result.output
    loops = duckdb.execute(f"select distinct loop from '{into}/*.parquet' order by loop").fetchall()
    assert loops == [("closed",), ("open",)]
    (found,) = duckdb.execute(f"select count(*) from '{decisions}/*.parquet'").fetchall()
    assert found == (1500 * 2,)
    words = ["--table", table, "--quotas", str(tmp_path / "users"), "--json"]
    printed = CliRunner().invoke(whatif, words, catch_exceptions=False)
    total = json.loads(printed.stdout)
    assert (total["proposal"], total["loop"]) == ("users", "open")
    assert total["throttled"] > 0


def test_bad_quota_file_is_reported_with_line_number(
    spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr(base, "session", lambda *_, **__: nullcontext(spark))
    (tmp_path / "q").write_text("nonsense\n")
    result = CliRunner().invoke(whatif, ["--table", "none", "--quotas", str(tmp_path / "q")])
    assert result.exit_code == 1
    assert "q:1:" in result.output

from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.broker.quotas.types import QuotaType
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.whatif.inputs import counting_of, proposals_of, settings_of
from minibroker.pipeline.whatif.proposal import Counting

LINE = "--alter --entity-type users --entity-name alice --add-config producer_byte_rate=10\n"
IP = "--alter --entity-type ips --entity-default --add-config connection_creation_rate=3\n"


def written(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def test_file_and_the_settings_make_a_proposal(tmp_path: Path) -> None:
    path = written(tmp_path / "now.quotas", LINE + IP)
    (found,) = proposals_of([path], settings_of(["quota.consumer.default=77"]))
    assert found.name == "now.quotas"
    assert found.ip_default == 3
    share = found.share(QuotaType.PRODUCE, "alice", "x")
    assert share is not None
    assert share[1].value == 10
    share = found.share(QuotaType.FETCH, "bob", "x")
    assert share is not None
    assert share[1].value == 77


def test_counting_reflects_broker_settings() -> None:
    assert counting_of(settings_of([])) == Counting()
    pairs = [
        "quota.window.num=5",
        "quota.throttle.mode=delay",
        "connection.ip.throttle.recheck=false",
    ]
    found = counting_of(settings_of(pairs))
    assert (found.quota_window_num, found.delays, found.rechecks) == (5, True, False)
    assert (found.remembered_ms, found.terms(closed=True).closed) == (6000, True)


def test_files_of_same_name_are_named_by_path(tmp_path: Path) -> None:
    paths = [written(tmp_path / folder / "q", LINE) for folder in "ab"]
    assert [found.name for found in proposals_of(paths, settings_of([]))] == paths


def test_bad_input_reports_reason_and_place(tmp_path: Path) -> None:
    path = written(tmp_path / "q", "--alter --nonsense\n")
    with pytest.raises(BadInput, match="q:1: --nonsense is not allowed"):
        proposals_of([path], settings_of([]))
    with pytest.raises(BadInput, match="cannot be read as a quota file"):
        proposals_of([str(tmp_path / "none")], settings_of([]))
    with pytest.raises(BadInput, match="given twice"):
        proposals_of([path, path], settings_of([]))
    with pytest.raises(BadInput, match=r"quota\.window\.num"):
        settings_of(["quota.window.num=0"])

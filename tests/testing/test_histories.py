from __future__ import annotations

import threading
from pathlib import Path

import pytest

from minibroker.lab.checker.history import InvalidHistory
from minibroker.testing import (
    Consumers,
    HistorySettings,
    HistoryWriter,
    IsolationLevel,
    check,
)


def test_written_history_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with HistoryWriter(path, HistorySettings(final_polls=True)) as history:
        history.invoke(0, "send", steps=[{"send": "orders-0", "value": 1}])
        history.complete(0, "ok", "send", steps=[{"send": "orders-0", "value": 1, "offset": 0}])
        history.invoke(1, "poll", steps=[{"poll": {}}])
        history.complete(1, "ok", "poll", steps=[{"poll": {"orders-0": [[0, 1]]}}])
    report = check(path)
    assert report.valid, report
    assert check(str(path)) == report
    assert check(path.read_text().splitlines()) == report


def test_anomaly_makes_a_report_invalid(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "run.jsonl") as history:
        history.invoke(1, "poll", steps=[{"poll": {}}])
        history.complete(1, "ok", "poll", steps=[{"poll": {"orders-0": [[0, 1]]}}])
    report = check(history.path)
    assert not report.valid
    assert report.anomalies == {"phantom-read": 1}


def test_settings_decide_what_is_allowed(tmp_path: Path) -> None:
    settings = HistorySettings(
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        idempotence=False,
        consumers=Consumers.SUBSCRIBE,
        final_polls=True,
    )
    with HistoryWriter(tmp_path / "run.jsonl", settings) as history:
        history.invoke(0, "send", steps=[{"send": "orders-0", "value": 1}])
        history.complete(0, "ok", "send", steps=[{"send": "orders-0", "value": 1, "offset": 0}])
        history.invoke(1, "poll", steps=[{"poll": {}}])
        history.complete(1, "ok", "poll", steps=[{"poll": {"orders-0": [[3, 1]]}}])
        history.invoke(0, "send", steps=[{"send": "orders-0", "value": 2}])
        history.complete(0, "ok", "send", steps=[{"send": "orders-0", "value": 2, "offset": 4}])
    report = check(history.path)
    assert report.settings == settings
    assert report.allowed == {"duplicate": 1}
    assert report.anomalies == {"unseen": 1}


def test_invalid_history_is_an_error() -> None:
    with pytest.raises(InvalidHistory, match="line 1: the first line must be the header"):
        check([{}])


def test_threads_share_a_writer(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "run.jsonl") as history:

        def write(process: int) -> None:
            for _ in range(100):
                history.invoke(process, "poll", steps=[{"poll": {}}])
                history.complete(process, "ok", "poll", steps=[{"poll": {}}])

        threads = [threading.Thread(target=write, args=(process,)) for process in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert check(history.path).operations == {"ok": 400}

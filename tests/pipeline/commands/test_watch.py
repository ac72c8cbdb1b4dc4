from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from minibroker.pipeline import cluster_access
from minibroker.pipeline.cluster_access import ClusterAccess
from minibroker.pipeline.commands import watch as command
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.watch import stream
from minibroker.pipeline.watch.rules import Alert, Rule, State, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

HELD = Alert(
    Subject(Rule.THROTTLED, 1, "", "etl", "request_percentage"), State.RAISED, 0, 5, 2, 40, 0
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command with a stream that raises one alert; returns its arguments."""
    started: dict[str, Any] = {}
    listeners = started["listeners"] = []

    @contextmanager
    def session(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(streams=SimpleNamespace(addListener=listeners.append))

    def begin(events: str, rules: Any, on_alerts: Any, **others: Any) -> str:
        started.update(
            others, events=events, rules=rules, there=Path(others["checkpoint"]).is_dir()
        )
        on_alerts([HELD])
        return "query"

    def send(*arguments: Any) -> None:
        started["sent"] = arguments

    def look(broker: ClusterAccess) -> cluster_access.ReachableTopic:
        started.setdefault("asked", []).append(broker)
        return cluster_access.ReachableTopic("id", {})

    monkeypatch.setattr(cluster_access, "find_activity_topic", look)
    monkeypatch.setattr(
        stream, "has_saved_state", lambda _, checkpoint: bool([*Path(checkpoint).iterdir()])
    )
    monkeypatch.setattr(command, "running", session)
    monkeypatch.setattr(stream, "read_topic", lambda spark, broker, **others: (broker, others))
    monkeypatch.setattr(stream, "events_of", lambda records: records)
    monkeypatch.setattr(stream, "watch", begin)
    monkeypatch.setattr(stream, "to_topic", send)
    monkeypatch.setattr(stream, "wait_for", lambda *_: None)

    def invoke(*arguments: str) -> Any:
        result = CliRunner().invoke(command.watch, ["--from", "there:9092", *arguments])
        assert result.exit_code == 0, result.output
        return result.output, started

    return invoke


def test_alert_is_printed_and_sent_to_topic(run: Any) -> None:
    output, started = run("--alerts-to", "alerts", "--over", "90", "--intervals", "2")
    assert "raised   client etl on broker 1: throttled for 10 s, longest 40 ms" in output
    assert started["sent"][1:] == (ClusterAccess("there:9092"), "alerts", [HELD])
    assert started["rules"].limits == (0.9, 2, 0.3)
    assert started["events"] == (ClusterAccess("there:9092"), {"from_beginning": False})
    assert started["asked"] == [ClusterAccess("there:9092")]


def test_alert_is_printed_as_json(run: Any) -> None:
    output, _ = run("--json")
    (line,) = (line for line in output.splitlines() if line.startswith("{"))
    assert json.loads(line)["client_id"] == "etl"


def test_command_config_is_used_to_read_and_send(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\n")
    _, started = run("--alerts-to", "alerts", "--command-config", str(file))
    broker = started["sent"][1]
    assert started["events"][0] is broker
    assert broker.read_options()["kafka.security.protocol"] == "SSL"


def test_skipped_records_are_reported(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, started = run()
    (listener,) = started["listeners"]
    metrics = {"skipped": {"skipped": 3}}
    listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(observedMetrics=metrics)))
    listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(observedMetrics=metrics)))
    assert (
        "skipped 3 records that are not events of this version (6 so far)"
        in capsys.readouterr().err
    )


def test_alert_without_topic_is_only_printed(run: Any) -> None:
    output, started = run()
    assert "raised" in output
    assert "sent" not in started


def test_checkpoint_is_temporary_unless_named(run: Any, tmp_path: Path) -> None:
    _, started = run()
    assert started["there"]
    assert not Path(started["checkpoint"]).exists()
    _, started = run("--checkpoint", str(tmp_path))
    assert (started["checkpoint"], started["topic_id"]) == (str(tmp_path), "id")
    assert tmp_path.is_dir()
    assert started["events"][1] == {"from_beginning": False}
    (tmp_path / "kept").touch()
    _, started = run("--checkpoint", str(tmp_path))
    assert started["events"][1] == {"from_beginning": True}


def test_missing_connector_reports_package(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match=r"spark\.jars\.packages=org\.apache\.spark:spark-sql"):
        stream.read_topic(spark, ClusterAccess("127.0.0.1:1"), from_beginning=True)

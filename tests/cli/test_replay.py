"""Captures are recorded and replayed by commands, and wrong arguments are explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minibroker.cli.output import InvalidUsage, Unreachable
from minibroker.testing import MiniBroker
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.lab.replay.recording import CaptureWriter, RecordedClient


def write_capture(path: Path, *, error: int = 0) -> Path:
    """A capture of one request; its response has a topic with an error."""
    writer = CaptureWriter()
    response = MetadataResponse(error_code=error)
    writer.exchange("1", 1, MetadataRequest(topics=[]), 13, response)
    writer.add("request", "1", 2, None)
    path.write_text("\n".join(writer.lines), encoding="utf-8")
    return path


def test_replay_reports_requests_and_skipped_ones(command: Any, tmp_path: Path) -> None:
    capture = str(write_capture(tmp_path / "c.jsonl"))
    result = command("replay", capture, "--speed", "max")
    assert result.exit_code == 0
    assert "sent 1 requests" in result.stdout
    assert "skipped 1 Produce: not recorded" in result.stdout
    found = json.loads(command("replay", capture, "--json").stdout)
    assert (found["answered"], found["unanswered"], found["differing"]) == (1, 0, [])


def test_replay_fails_if_errors_differ(command: Any, tmp_path: Path) -> None:
    capture = str(write_capture(tmp_path / "c.jsonl", error=15))
    result = command("replay", capture, "--speed", "max")
    assert result.exit_code == 1
    assert "METADATA: NONE instead of COORDINATOR_NOT_AVAILABLE in 1 responses" in result.stdout


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        ("", (), "there are no requests"),
        ("{", (), "line 1: "),
        (None, ("--speed", "0"), "must be a positive number, or max"),
        (None, ("--speed", "fast"), "must be a positive number, or max"),
        (None, ("--serve", "x"), "--serve x: must be host:port"),
    ],
)
def test_wrong_arguments_are_explained(
    command: Any, tmp_path: Path, text: str | None, options: tuple[str, ...], problem: str
) -> None:
    path = write_capture(tmp_path / "c.jsonl")
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidUsage, match=problem):
        command("replay", str(path), *options)


def test_missing_file_and_missing_broker_are_explained(command: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidUsage, match="cannot be read"):
        command("replay", str(tmp_path / "none"))
    capture = str(write_capture(tmp_path / "c.jsonl"))
    with pytest.raises(Unreachable, match="no broker answers at 127"):
        command("replay", capture, "-b", "127.0.0.1:1")


def test_saved_and_recorded_captures_can_be_replayed(command: Any, tmp_path: Path) -> None:
    saved, recorded = str(tmp_path / "saved.jsonl"), str(tmp_path / "recorded.jsonl")
    with MiniBroker() as broker, broker.journal as journal:
        server = ("-b", broker.bootstrap_servers)
        with RecordedClient(broker.bootstrap_servers, "1", CaptureWriter()) as client:
            client.ask(MetadataRequest(topics=[]), 12)
        journal.wait_for(kind="response", api="Metadata")
        assert journal.save(saved) == 2
        found = json.loads(command("replay", saved, "--json", *server).stdout)
        assert (found["answered"], found["unanswered"], found["differing"]) == (1, 0, [])
        result = command("record", recorded, "--seconds", "0", "--control", broker.control_url)
        assert "recorded 0 requests and responses" in result.stderr
        assert Path(recorded).read_text(encoding="utf-8") == ""
        control = ("--control", broker.control_url)
        result = command("record", recorded, "--seconds", "0", "--json", *control)
        assert json.loads(result.stdout) == {"file": recorded, "recorded": 0, "lost": 0}

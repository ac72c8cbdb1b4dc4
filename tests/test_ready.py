from __future__ import annotations

import json
from pathlib import Path

from minibroker.ready import Ready, as_json, as_text, command_name, error_as_json

READY = Ready("127.0.0.1:9092", "http://127.0.0.1:40001", "/dev/shm/x", True, 4242)


def test_programs_read_one_line_with_exactly_these_keys() -> None:
    line = as_json(READY)
    assert "\n" not in line
    assert json.loads(line) == {
        "event": "ready",
        "bootstrap_servers": "127.0.0.1:9092",
        "control_url": "http://127.0.0.1:40001",
        "pid": 4242,
    }


def test_failed_start_is_one_line_with_the_message_and_the_exit_status() -> None:
    line = error_as_json("invalid settings:\n  num.partition: there is no such setting", 4)
    assert "\n" not in line
    assert json.loads(line) == {
        "event": "error",
        "message": "invalid settings:\n  num.partition: there is no such setting",
        "exit_status": 4,
    }


def test_startup_prints_addresses_and_example_command() -> None:
    text = as_text(READY)
    assert "127.0.0.1:9092" in text
    assert "http://127.0.0.1:40001" in text
    assert "/dev/shm/x (removed at the end)" in text
    assert text.endswith("  minibroker consume cats --from-beginning")


def test_commands_name_the_broker_where_it_is_not_at_the_default_port() -> None:
    text = as_text(READY._replace(bootstrap_servers="127.0.0.1:40000,127.0.0.1:40002"))
    assert text.endswith("consume cats --from-beginning -b 127.0.0.1:40000")


def test_secured_broker_says_what_its_clients_need() -> None:
    secured = READY._replace(client_properties="/srv/security/client.properties")
    assert json.loads(as_json(secured))["client_properties"] == secured.client_properties
    text = as_text(secured)
    assert "client-config --for LIBRARY --security-dir /srv/security\n" in text
    needed = "-b 127.0.0.1:9092 --command-config /srv/security/client.properties"
    assert text.endswith(f"consume cats --from-beginning {needed}")


def test_kept_data_is_reported() -> None:
    assert "/data (kept)" in as_text(READY._replace(data_dir="/data", temporary=False))


def test_usage_names_the_command_as_typed() -> None:
    assert command_name("/usr/bin/minibroker", "/usr/bin/minibroker") == "minibroker"
    assert command_name(".venv/bin/minibroker", None) == ".venv/bin/minibroker"
    assert command_name(str(Path.cwd() / ".venv/bin/minibroker"), None) == ".venv/bin/minibroker"
    assert command_name(str(Path.cwd() / "minibroker-linux"), None) == "./minibroker-linux"
    assert command_name("/opt/elsewhere/minibroker", None) == "/opt/elsewhere/minibroker"
    assert command_name("/lib/minibroker/__main__.py", None) == "python -m minibroker"

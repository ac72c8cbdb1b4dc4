from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.cli.app import LATE
from minibroker.cli.errors import BadConfig, UsageMistake
from minibroker.cli.start import read_settings, start
from minibroker.config import LISTENERS, NUM_IO_THREADS, NUM_PARTITIONS, Listener, Settings


def read(**changes: object) -> Settings:
    options: dict[str, object] = {
        "listeners": [],
        "data_dir": None,
        "config": None,
        "pairs": [],
        "profile": "laptop",
        "control": None,
    }
    return read_settings(**{**options, **changes})  # type: ignore[arg-type]


def test_without_options_the_defaults_hold() -> None:
    assert read()[LISTENERS] == (Listener("PLAINTEXT", "127.0.0.1", 9092),)


def test_an_option_wins_over_a_pair_and_a_pair_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("listeners=PLAINTEXT://:1\nnum.partitions=3\nnum.io.threads=4\n")
    settings = read(
        config=file,
        pairs=["num.io.threads=5", "listeners=PLAINTEXT://:2"],
        listeners=["PLAINTEXT://127.0.0.1:0", "OTHER://127.0.0.1:9192"],
    )
    assert settings[NUM_PARTITIONS] == 3
    assert settings[NUM_IO_THREADS] == 5
    assert settings[LISTENERS] == (
        Listener("PLAINTEXT", "127.0.0.1", 0),
        Listener("OTHER", "127.0.0.1", 9192),
    )


def test_data_and_control_are_settings_too(tmp_path: Path) -> None:
    settings = read(data_dir=tmp_path, control="127.0.0.1:8080")
    assert settings.data_dir == str(tmp_path)


def test_the_profile_chooses_kafka_s_numbers_of_processes() -> None:
    assert read(profile="kafka")[NUM_IO_THREADS] == 8


def test_a_misspelt_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadConfig, match=r"num\.partition .*did you mean num\.partitions\?"):
        read(pairs=["num.partition=3"])


def test_a_listener_that_is_none_is_refused_with_an_example() -> None:
    with pytest.raises(BadConfig, match=r"--listener.*PLAINTEXT://127\.0\.0\.1:9092"):
        read(listeners=["9092"])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageMistake, match=r"--config .*nowhere: there is no such file"):
        read(config=tmp_path / "nowhere")


def loaded_by(*arguments: str) -> set[str]:
    """What the command line has imported when it has done what ``arguments`` say."""
    program = (
        "import contextlib, io, sys\n"
        "from minibroker.cli import main\n"
        f"sys.argv[1:] = {arguments!r}\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main()\n"
        "print(*sys.modules)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return set(ended.stdout.split())


HEAVY = {"trio", "starlette", "h11", "kazoo", "prometheus_client", "asyncio", "rich", "pydantic"}


def test_help_loads_no_command_and_nothing_that_is_heavy() -> None:
    loaded = loaded_by("--help")
    assert not loaded & {*HEAVY, "construct", "minibroker.config"}
    assert not loaded & {late.module for late in LATE.values()}


def test_recovery_without_a_data_directory_is_refused() -> None:
    with pytest.raises(UsageMistake, match="--recover-topics-from-logs: requires --data-dir"):
        start.main(["--recover-topics-from-logs"], standalone_mode=False)


def test_start_loads_no_client_and_no_other_command() -> None:
    loaded = loaded_by("start", "--help")
    assert "minibroker.cli.start" in loaded
    assert not loaded & {*HEAVY, "minibroker.client.kafka_client", "minibroker.cli.topics"}


def test_the_commands_load_nothing_of_the_broker() -> None:
    assert not loaded_by("consume", "--help") & HEAVY


def test_what_is_loaded_is_not_looked_through_for_garbage() -> None:
    code = """
import gc, socket, sys
from minibroker.cli.app import app

class Watch:
    def find_spec(self, name, *_):
        if name == "minibroker.broker.layout":
            print("loading", gc.isenabled())

sys.meta_path.insert(0, Watch())
with socket.create_server(("127.0.0.1", 0)) as taken:
    try:
        app(["start", "--listener", f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"])
    except SystemExit as ended:
        print("ended", bool(ended.code), gc.isenabled(), gc.get_freeze_count() > 10_000)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "loading False\nended True True True\n", run.stderr

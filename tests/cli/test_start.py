from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from minibroker.broker.settings import LISTENERS, NUM_IO_THREADS, NUM_PARTITIONS, Listener, Settings
from minibroker.cli.app import LATE
from minibroker.cli.output import BadConfig, InvalidUsage
from minibroker.cli.start import read_settings, secure, start


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


def test_start_without_options_uses_defaults() -> None:
    assert read()[LISTENERS] == (Listener("PLAINTEXT", "127.0.0.1", 9092),)


def test_start_options_override_pairs_and_pairs_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("listeners=PLAINTEXT://:1\nnum.partitions=3\nnum.io.threads=4\n")
    settings = read(
        config=file,
        pairs=[
            "num.io.threads=5",
            "listeners=PLAINTEXT://:2",
            "listener.security.protocol.map=OTHER:PLAINTEXT",
        ],
        listeners=["PLAINTEXT://127.0.0.1:0", "OTHER://127.0.0.1:9192"],
    )
    assert settings[NUM_PARTITIONS] == 3
    assert settings[NUM_IO_THREADS] == 5
    assert settings[LISTENERS] == (
        Listener("PLAINTEXT", "127.0.0.1", 0),
        Listener("OTHER", "127.0.0.1", 9192),
    )


def test_environment_overrides_the_file_and_options_override_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.io.threads=4\nnum.partitions=3\nbroker.id=1\n")
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "5")
    monkeypatch.setenv("MINIBROKER_NUM_IO_THREADS", "6")
    monkeypatch.setenv("KAFKA_BROKERS_OF_MY_PROGRAM", "k:9092")
    settings = read(config=file, pairs=["num.partitions=7"])
    assert (settings[NUM_PARTITIONS], settings[NUM_IO_THREADS]) == (7, 6)
    assert settings.where(NUM_IO_THREADS) == "$MINIBROKER_NUM_IO_THREADS"
    assert "KAFKA_BROKERS_OF_MY_PROGRAM" in settings.warnings[0]
    monkeypatch.setenv("MINIBROKER_NUM_PARTITION", "5")
    monkeypatch.setenv("MINIBROKER_DATA_DIR", "/data")
    with pytest.raises(BadConfig, match=r"num\.partition \(\$MINIBROKER_NUM_PARTITION\)") as caught:
        read()
    assert "pass the option --data-dir" in str(caught.value)


def test_start_options_set_data_directory_and_control_listener(tmp_path: Path) -> None:
    settings = read(data_dir=tmp_path, control="127.0.0.1:8080")
    assert settings.data_dir == str(tmp_path)


def test_profile_chooses_kafka_s_numbers_of_processes() -> None:
    assert read(profile="kafka")[NUM_IO_THREADS] == 8


def test_start_with_misspelt_setting_suggests_the_nearest() -> None:
    with pytest.raises(BadConfig, match=r"num\.partition .*did you mean num\.partitions\?"):
        read(pairs=["num.partition=3"])


def test_start_with_invalid_listener_shows_an_example() -> None:
    with pytest.raises(BadConfig, match=r"--listener.*PLAINTEXT://127\.0\.0\.1:9092"):
        read(listeners=["9092"])


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsage, match=r"--config .*nowhere: there is no such file"):
        read(config=tmp_path / "nowhere")


def loaded_by(*arguments: str) -> set[str]:
    """Return the modules that a command line with ``arguments`` has imported."""
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


def test_help_imports_no_command() -> None:
    loaded = loaded_by("--help")
    assert not loaded & {*HEAVY, "construct", "minibroker.broker.settings"}
    assert not loaded & {late.module for late in LATE.values()}


def test_recovery_without_data_directory_is_rejected() -> None:
    with pytest.raises(InvalidUsage, match="--recover-topics-from-logs: requires --data-dir"):
        start.main(["--recover-topics-from-logs"], standalone_mode=False)


def test_start_imports_no_client() -> None:
    loaded = loaded_by("start", "--help")
    assert "minibroker.cli.start" in loaded
    assert not loaded & {*HEAVY, "minibroker.client.kafka_client", "minibroker.cli.topics"}


def test_client_commands_import_nothing_of_the_broker() -> None:
    assert not loaded_by("consume", "--help") & HEAVY


def test_start_freezes_imported_modules_for_gc() -> None:
    code = """
import gc, socket, sys
from minibroker.cli.app import app

class Watch:
    def find_spec(self, name, *_):
        if name == "minibroker.launch.layout":
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


START = [sys.executable, "-m", "minibroker", "start", "--json"]
FREE_PORT = ["--listener", "PLAINTEXT://127.0.0.1:0"]
PATIENCE_S = 120


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--retention", "1"], 2, "No such option '--retention'"),
        (["--config", "nowhere"], 2, "--config nowhere: there is no such file"),
        (["--set", "num.partition=3"], 4, "did you mean num.partitions?"),
        (["--listener", "PLAINTEXT://198.51.100.1:0"], 1, "choose one of its own, or 0.0.0.0"),
        (
            [
                *("--set", "zookeeper.connect=127.0.0.1:1"),
                *("--set", "zookeeper.connection.timeout.ms=1"),
                *FREE_PORT,
            ],
            1,
            "check that it is running, and check zookeeper.connect",
        ),
    ],
    ids=["option", "file", "setting", "address", "role"],
)
def test_broker_that_cannot_start_prints_one_line_of_json(
    arguments: list[str], status: int, message: str
) -> None:
    ended = subprocess.run(
        [*START, *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    (line,) = ended.stdout.splitlines()
    error = json.loads(line)
    assert (error["event"], error["exit_status"], ended.returncode) == ("error", status, status)
    assert message in error["message"]
    assert message in ended.stderr


def test_broker_that_cannot_start_prints_no_json_unless_requested() -> None:
    ended = subprocess.run(
        [*(word for word in START if word != "--json"), "--set", "num.partition=3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (ended.stdout, ended.returncode) == ("", 4)


def test_exit_with_parent_stops_the_broker_when_its_parent_is_killed() -> None:
    program = f"import subprocess; subprocess.run({[*START, *FREE_PORT, '--exit-with-parent']})"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert json.loads(parent.stdout.readline())["event"] == "ready"
        parent.kill()
        assert parent.stdout.read() == b""  # All processes of the broker have ended.


def test_exit_with_parent_stops_the_broker_when_its_standard_input_is_closed() -> None:
    with subprocess.Popen(
        [*START, *FREE_PORT, "--exit-with-parent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        assert json.loads(broker.stdout.readline())["event"] == "ready"
        broker.stdin.close()
        assert broker.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("sasl", [None, "plain"])
def test_certificate_names_the_hosts_of_the_listeners(tmp_path: Path, sasl: str | None) -> None:
    protocol = "SSL" if sasl is None else "SASL_SSL"
    made = secure(tmp_path, True, sasl, [f"{protocol}://kafka.test:9093", f"{protocol}://:1"])
    pem = (made.folder / "server.pem").read_bytes()
    certificate = x509.load_pem_x509_certificates(pem)[0]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "kafka.test"]


def test_start_imports_no_security_before_it_is_needed() -> None:
    script = """
import sys, minibroker.cli.start
print(*(name for name in sys.modules if name in {
    "minibroker.client.configs", "minibroker.client.tokens", "minibroker.secured", "http.client"}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"\n"

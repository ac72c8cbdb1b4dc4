"""The faulty file system injects the fault that is set, below its directory only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from system_tests.attack.disks import FaultyDisk, Mode
from system_tests.harness.jars import PROJECT

SCRIPT = """
import errno, os, sys
from pathlib import Path
folder = Path(sys.argv[1])
def attempt(name, work):
    try:
        print(name, work())
    except OSError as error:
        print(name, errno.errorcode[error.errno])
file = os.open(folder / "00.log", os.O_RDWR | os.O_CREAT)
attempt("pwritev", lambda: os.pwritev(file, (b"a" * 60, b"b" * 40), 0))
attempt("write", lambda: os.write(file, b"c" * 10))
attempt("fsync", lambda: os.fsync(file))
attempt("create", lambda: os.close(os.open(folder / "new", os.O_WRONLY | os.O_CREAT)))
attempt("mkdir", lambda: os.mkdir(folder / "made"))
attempt("size", lambda: os.fstat(file).st_size)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "00.log").touch()
    return tmp_path / "data"


@pytest.fixture
def disk(tmp_path: Path, folder: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path / "rules", folder)


def outcomes(disk: FaultyDisk, folder: Path) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        env=dict(disk.environment),
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )
    return dict(line.split() for line in done.stdout.splitlines())


HEALTHY = {"pwritev": "100", "write": "10", "fsync": "None", "create": "None", "mkdir": "None"}


def test_healthy_disk_changes_nothing(disk: FaultyDisk, folder: Path) -> None:
    assert outcomes(disk, folder) == {**HEALTHY, "size": "100"}
    assert disk.injected == 0


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Mode.FULL, {"pwritev": "50", "write": "ENOSPC", "create": "ENOSPC", "mkdir": "ENOSPC"}),
        (Mode.BROKEN, {"pwritev": "EIO", "write": "EIO", "fsync": "EIO", "mkdir": "EIO"}),
        (Mode.SHORT_WRITES, {"pwritev": "50", "write": "5"}),
        (Mode.FAILING_SYNC, {"fsync": "EIO"}),
    ],
)
def test_fault_changes_the_calls_that_it_concerns(
    disk: FaultyDisk, folder: Path, mode: Mode, expected: dict[str, str]
) -> None:
    disk.set(mode, after_bytes=50)
    found = outcomes(disk, folder)
    found.pop("size")
    assert found == {**HEALTHY, **expected}
    assert disk.injected > 0
    disk.set(Mode.HEALTHY)
    if (folder / "made").exists():
        (folder / "made").rmdir()
    assert outcomes(disk, folder)["pwritev"] == "100"


def test_read_only_disk_rejects_open_for_writing(disk: FaultyDisk, folder: Path) -> None:
    disk.set(Mode.READ_ONLY)
    assert outcomes(disk, folder) == {}  # The first line of the script opens a file for writing.
    assert disk.injected == 1


def test_torn_write_is_the_last_of_its_process(disk: FaultyDisk, folder: Path) -> None:
    disk.set(Mode.TORN, after_bytes=70)
    assert outcomes(disk, folder) == {}
    assert (folder / "00.log").stat().st_size == 70
    assert (disk.torn, disk.mode) == (1, Mode.HEALTHY)


def test_files_elsewhere_are_not_affected(disk: FaultyDisk, tmp_path: Path) -> None:
    other = tmp_path / "data-of-another"
    other.mkdir()
    disk.set(Mode.BROKEN)
    assert outcomes(disk, other) == {**HEALTHY, "size": "100"}

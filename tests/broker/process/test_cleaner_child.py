from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path

import pytest

from minibroker.broker.log.cleaner.cleaning import (
    CleaningFailedError,
    CleaningResult,
    CleaningTask,
    SourceSegment,
)
from minibroker.broker.process.cleaner_child import LENGTH, Pace, run
from minibroker.python_command import python_command
from minibroker_protocol.records import Record, build_batch


def task(directory: Path) -> CleaningTask:
    batches = [build_batch([Record(key=b"a", value=b"1")], base_offset=at) for at in range(3)]
    size = (directory / f"{0:020}.log").write_bytes(b"".join(batches))
    groups = ((SourceSegment(0, size, 0),),)
    return CleaningTask(str(directory), groups, 0, 3, 0, 10, 4096, 10, 100, {}, ())


def test_pace_keeps_the_average() -> None:
    pace = Pace(100.0, now=5.0)
    assert pace.pause_s(200, now=5.5) == 1.5
    assert pace.pause_s(100, now=9.0) == 0


def test_cleaning_ends_without_its_parent(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(task(tmp_path), 1e9, parent=-1)


def test_child_answers_each_task(tmp_path: Path) -> None:
    requests = b""
    for each in (task(tmp_path), task(tmp_path)._replace(directory="/nowhere")):
        body = pickle.dumps((each, 1e9))
        requests += LENGTH.pack(len(body)) + body
    program = "from minibroker.broker.process.cleaner_child import main; main()"
    command = python_command(program, str(os.getpid()))
    answers = subprocess.run(command, input=requests, capture_output=True, check=True).stdout
    found = []
    while answers:
        (length,) = LENGTH.unpack_from(answers)
        found.append(pickle.loads(answers[LENGTH.size : LENGTH.size + length]))
        answers = answers[LENGTH.size + length :]
    assert isinstance(found[0], CleaningResult)
    assert found[0].records_kept == 1
    assert isinstance(found[1], CleaningFailedError)
    assert "No such file" in str(found[1])

"""One sentence on systems on which minibroker does not run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from minibroker.platforms import refusal
from minibroker.runtime.system import VARIABLE

COMMAND = "from minibroker.cli import main; main()"
IMPORT = "from minibroker.testing import MiniBroker"


def on(platform: str, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python that claims to run on another system."""
    text = f"import sys; sys.platform = {platform!r}; sys.argv = ['minibroker', 'start']; {program}"
    environment = {name: text for name, text in os.environ.items() if name != VARIABLE}
    return subprocess.run(
        [sys.executable, "-S", "-c", text],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("program", [COMMAND, IMPORT])
@pytest.mark.parametrize("platform", ["win32", "cygwin", "emscripten"])
def test_other_system_gets_one_sentence_that_names_wsl_and_the_image(
    platform: str, program: str
) -> None:
    done = on(platform, program)
    assert done.returncode == 1
    *before, sentence = done.stderr.splitlines()
    assert f"not on {platform}: on Windows, run it in WSL or from its container image" in sentence
    assert program == IMPORT or not before


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_linux_and_macos_are_accepted(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert refusal() is None


@pytest.mark.parametrize(("platform", "is_portable"), [("linux", False), ("darwin", True)])
def test_macos_chooses_the_portable_variants_by_itself(platform: str, is_portable: bool) -> None:
    library = "sys.platform = 'linux'; import mmap, pathlib, resource, select, socket, struct"
    ours = "from minibroker.runtime.system import is_portable; print(is_portable())"
    program = f"{library}; sys.platform = {platform!r}; {ours}"
    done = on(platform, program)
    assert done.stdout == f"{is_portable}\n", done.stderr

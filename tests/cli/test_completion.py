"""Completion: what a shell is answered, and real shells where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.cli.completion import PROGRAM, SHELLS, VARIABLE
from minibroker.testing import MiniBroker


def run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def completions(*words: str) -> list[str]:
    """Return what bash would offer for the last word."""
    environment = {
        VARIABLE: "bash_complete",
        "COMP_WORDS": " ".join((PROGRAM, *words)),
        "COMP_CWORD": str(len(words)),
    }
    answer = run([sys.executable, "-m", "minibroker"], **environment)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    return [line.partition(",")[2] for line in answer.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["to"], ["topics", "top"]),
        (["topics", "cr"], ["create"]),
        (["groups", "reset-offsets", "g", "--to-"], ["--to-earliest", "--to-latest"]),
        (["completion", ""], list(SHELLS)),
        (["settings", "explain", "num.io"], ["num.io.threads"]),
        (["strat", ""], []),
        (["--version", "to"], ["topics"]),
    ],
)
def test_words_are_completed(words: list[str], expected: list[str]) -> None:
    found = completions(*words)
    assert set(expected) <= set(found)
    assert found or not expected


def test_names_of_topics_and_groups_come_from_the_broker(
    minibroker: MiniBroker, minibroker_topic: str
) -> None:
    here = ("-b", minibroker.bootstrap_servers)
    assert completions("consume", *here, minibroker_topic[:-2]) == [minibroker_topic]
    assert completions("groups", "describe", *here, "no such") == []


def test_without_a_broker_no_names_are_offered() -> None:
    assert completions("consume", "-b", "127.0.0.1:1", "") == []


def test_completion_of_a_command_imports_no_other() -> None:
    code = (
        "import sys; from click.shell_completion import BashComplete;"
        "from minibroker.cli.app import app;"
        "BashComplete(app, {}, 'minibroker', '').get_completions([], '');"
        "print(sorted(m[15:] for m in sys.modules if m.startswith('minibroker.cli.')))"
    )
    assert run([sys.executable, "-c", code]).stdout == "['app', 'commands', 'output']\n"


# In a real shell, `minibroker` is this interpreter. bash and zsh complete what is typed at a
# prompt; their functions are called with the variables that they would find there.
TYPED = {
    "bash": """
eval "$(minibroker completion bash)"
COMP_WORDS=(minibroker topics cre) COMP_CWORD=2
$(complete -p minibroker | sed 's/.*-F \\([^ ]*\\).*/\\1/') minibroker
printf '%s\\n' "${COMPREPLY[@]}"
""",
    "zsh": """
autoload -Uz compinit && compinit -u -D
eval "$(minibroker completion zsh)"
compadd() { :; }
_describe() { for each in "${(@P)3}"; do print -r -- "${each%%:*}"; done }
words=(minibroker topics cre) CURRENT=3
_minibroker_completion
""",
    "fish": """
minibroker completion fish | source
complete --do-complete "minibroker topics cre" | cut -f1
""",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_real_shell_completes_a_command(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / PROGRAM
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m minibroker "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    answer = run([shell, "-c", TYPED[shell]], PATH=path, HOME=str(tmp_path))
    assert answer.stdout.splitlines() == ["create"], answer.stderr


def test_script_is_printed_for_each_shell() -> None:
    for shell in SHELLS:
        script = CliRunner().invoke(app, ["completion", shell]).stdout
        assert f"{VARIABLE}={shell}_complete" in script

"""C and Go programs of the tests: compiled once, kept in the cache.

Owns finding a compiler and naming the results. It must never know what the programs do. Invariant:
a returned program was compiled from the current source and the headers in its folder.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from system_tests.harness.jars import CACHE, ToolchainMissing, fetch, one_at_a_time, run


def compiled(source: Path, *options: str) -> Path:
    """Return the program of a C file, compiled with these options if it is not up to date."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise ToolchainMissing("no C compiler (cc, gcc or clang) is on the path: install one")
    contents = [file.read_bytes() for file in (source, *sorted(source.parent.glob("*.h")))]
    digest = hashlib.sha256(b"".join(contents) + repr(options).encode()).hexdigest()[:12]
    program = CACHE / f"{source.parent.name}-{source.stem}-{digest}"
    with one_at_a_time("programs"):
        if not program.exists():
            fresh = program.with_suffix(".part")
            done = subprocess.run(
                [compiler, "-O2", "-Wall", "-o", str(fresh), str(source), *options],
                check=False,
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                raise ToolchainMissing(f"{source.name} was not compiled:\n{done.stderr}")
            fresh.rename(program)
    return program


def built_with_go(folder: Path) -> Path:
    """Return the program of a folder that is a Go module; Go itself knows what is up to date."""
    program = CACHE / folder.name
    fresh = program.with_suffix(".part")
    with one_at_a_time("programs"):
        fetch_go_modules(folder)
        run(["go", "build", "-o", str(fresh), "."], f"{folder.name} was not built", folder)
        fresh.rename(program)  # the program may be running
    return program


def fetch_go_modules(folder: Path) -> None:
    """Fetch the modules that a Go module requires; `go.sum` has their checksums."""
    if shutil.which("go") is None:
        raise ToolchainMissing(f"`go` is not on the path: install Go to have {folder.name}")
    fetch(["go", "mod", "download"], f"the modules of {folder.name} were not fetched", folder)

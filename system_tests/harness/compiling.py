"""C, Go, Rust and JavaScript programs of the tests: compiled or installed once, kept in the cache.

Owns finding a compiler and naming the results. It must never know what the programs do. Invariant:
a returned program was made from the current source, and the headers or locked packages in its
folder.
"""

from __future__ import annotations

import functools
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


@functools.cache
def built_with_go(folder: Path) -> Path:
    """Return the program of a folder that is a Go module; Go itself knows what is up to date.

    Within a process it is asked once.
    """
    program = CACHE / folder.name
    fresh = program.with_suffix(".part")
    with one_at_a_time("programs"):
        fetch_go_modules(folder)
        run(["go", "build", "-o", str(fresh), "."], f"{folder.name} was not built", folder)
        fresh.rename(program)  # the program may be running
    return program


def installed_with_npm(folder: Path) -> Path:
    """Return a copy of a folder with the packages that its `package-lock.json` names."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise ToolchainMissing(
                f"`{program}` is not on the path: install Node.js and npm to have {folder.name}"
            )
    contents = [file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()]
    digest = hashlib.sha256(b"".join(contents)).hexdigest()[:12]
    copy = CACHE / f"{folder.name}-{digest}"
    with one_at_a_time("programs"):
        if not copy.is_dir():
            fresh = copy.with_suffix(".part")
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.copytree(folder, fresh, ignore=shutil.ignore_patterns("node_modules"))
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            fetch(command, f"the packages of {folder.name} were not fetched", fresh)
            fresh.rename(copy)
    return copy


def built_with_npm(folder: Path, native: str) -> Path:
    """Return a copy of a folder as `installed_with_npm`, with a package that has to be compiled.

    It is linked with libraries of the machine. The headers of Node.js are those next to it.
    """
    copy = installed_with_npm(folder)
    node = shutil.which("node")
    assert node is not None
    with one_at_a_time("programs"):
        if not list((copy / "node_modules" / native).glob("build/Release/*.node")):
            settings = {
                "npm_config_build_from_source": native,
                "npm_config_nodedir": str(Path(node).resolve().parents[1]),
                "CKJS_LINKING": "dynamic",
            }
            words = ["env", *(f"{name}={value}" for name, value in settings.items())]
            run([*words, "npm", "rebuild", native], f"{native} was not built", copy)
    return copy


@functools.cache
def built_with_cargo(folder: Path) -> Path:
    """Return the program of a folder that is a crate; Cargo itself knows what is up to date."""
    if shutil.which("cargo") is None:
        raise ToolchainMissing(f"`cargo` is not on the path: install Rust to have {folder.name}")
    target = CACHE / f"{folder.name}-target"
    with one_at_a_time("programs"):
        fetch(
            ["cargo", "fetch", "--locked"], f"the crates of {folder.name} were not fetched", folder
        )
        words = ["cargo", "build", "--release", "--locked", "--target-dir", str(target)]
        run(words, f"{folder.name} was not built", folder)
    return target / "release" / folder.name


def fetch_go_modules(folder: Path) -> None:
    """Fetch the modules that a Go module requires; `go.sum` has their checksums."""
    if shutil.which("go") is None:
        raise ToolchainMissing(f"`go` is not on the path: install Go to have {folder.name}")
    fetch(["go", "mod", "download"], f"the modules of {folder.name} were not fetched", folder)

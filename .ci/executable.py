"""Builds one executable that runs minibroker on a machine without Python: dist/minibroker-SYSTEM.

Owns what is in it: an interpreter with its libraries, the standard library without what no
broker needs, and the wheel of ``make dist`` with its requirements. PyApp, built by cargo,
carries them as an archive, unpacks it at the first start and runs that Python from then on. It must
never need anything of the machine but the C library. Invariant: the interpreter is the last file
of the archive, so that a Python that was not unpacked completely is never run.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import zstandard

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PYAPP_VERSION = "0.31.0"
TARGET = ROOT / ".cache" / "pyapp-target"
PYTHON_FOLDER = "PYTHON_FOLDER"
"""A folder with a relocatable Python, e.g. one of python-build-standalone's. By default one is made
of the interpreter that runs this program, which needs a C library as new as this machine's."""
EXTRAS = "zookeeper,oauth"
"""What a broker can use; it can't be installed into an executable later."""

INTERPRETER = "bin/python3"
UNNEEDED = re.compile(
    r"(?:tests?|_tests?|idlelib|tkinter|turtledemo|ensurepip|lib2to3|distutils|venv|pydoc_data"
    r"|site-packages|config-.*|__pycache__|turtle\.py|.*\.a"
    r"|(?:_tkinter|_test.*|_ctypes_test|_?xx.*|_curses.*|readline|nis|_g?dbm|_crypt)\.cpython.*)$"
)
SYSTEM_LIBRARIES = re.compile(r"lib(?:c|m|dl|rt|util|pthread|resolv|nsl)\.so")
"""Those of the C library, which belong to the machine."""

START = (
    "import os, sys; sys.argv[0] = os.environ.pop('PYAPP', 'minibroker');"
    " from minibroker.cli import main; main()"
)


def make_python(target: Path) -> None:
    """Copy this interpreter to a folder in which it finds all that it needs."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = target / "lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=unneeded)
    interpreter = target / INTERPRETER
    interpreter.parent.mkdir()
    shutil.copy2(os.path.realpath(sys.executable), interpreter)


def unneeded(folder: str, names: list[str]) -> set[str]:
    """Return the names in a folder of the standard library that no broker needs."""
    del folder
    return {name for name in names if UNNEEDED.match(name)}


def bring_libraries(target: Path, packages: Path) -> None:
    """Copy the libraries that binaries load to the folder ``lib``, where they find them."""
    loaded = dict(found for binary in binaries(target) for found in libraries_of(binary))
    for name, path in loaded.items():
        if not Path(path).resolve().is_relative_to(target):
            shutil.copy2(path, target / "lib" / name)
    for binary in binaries(target):
        subprocess.run(["strip", str(binary)], check=False)  # noqa: S603, S607 - the system's
        # Packages bring libraries of their own, and know where these are.
        option = "--add-rpath" if binary.is_relative_to(packages) else "--set-rpath"
        to_libraries = os.path.relpath(target / "lib", binary.parent)
        tool("patchelf", option, f"$ORIGIN/{to_libraries}", str(binary))


def libraries_of(binary: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the path of each library that a binary loads, but the system's."""
    for name, path in re.findall(r"(\S+) => (/\S+)", output("ldd", str(binary))):
        if not SYSTEM_LIBRARIES.match(name):
            yield name, path


def binaries(folder: Path) -> list[Path]:
    """Return the files in ELF's format."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF"
    ]


def output(*command: str) -> str:
    """Return what a program of the system prints."""
    return subprocess.run(  # noqa: S603 - our own command
        command, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def tool(*command: str) -> None:
    """Run a program of the environment of ``make dist``, or of the system."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which(command[0], path=path) or command[0]
    subprocess.run([program, *command[1:]], check=True)  # noqa: S603 - our own command


def install(target: Path) -> Path:
    """Install the wheel that suits a Python, and compile all; return the folder of packages."""
    (library,) = target.glob("lib/python3.*/")
    packages = library / "site-packages"
    python = str(target / INTERPRETER)
    (sdist,) = DIST.glob("minibroker-*.tar.gz")
    version = sdist.name.removeprefix("minibroker-").removesuffix(".tar.gz")
    tool(
        *["uv", "pip", "install", "-q", "--python", python, "--target", str(packages)],
        *["--find-links", str(DIST), "--no-build", f"minibroker[{EXTRAS}]=={version}"],
    )
    needless = (packages / "bin", packages / "trio/_tests", target / "share", target / "include")
    for folder in needless:
        shutil.rmtree(folder, ignore_errors=True)
    if sys.platform == "linux":
        bring_libraries(target, packages)
    # Compiled once, here: a first start must not, and a later one must not look at sources' times.
    arguments = ["-q", "-f", "--invalidation-mode", "unchecked-hash", str(target / "lib")]
    tool(python, "-I", "-m", "compileall", *arguments)
    return packages


def pack(python: Path, archive: Path) -> None:
    """Pack a folder, its interpreters last."""
    paths = [path for path in sorted(python.rglob("*")) if not path.is_dir() or path.is_symlink()]
    paths.sort(key=lambda path: path.parent == python / "bin")
    compressor = zstandard.ZstdCompressor(level=19)
    with (
        archive.open("wb") as file,
        compressor.stream_writer(file) as compressed,
        tarfile.open(mode="w|", fileobj=compressed) as packed,
    ):
        for path in paths:
            packed.add(path, path.relative_to(python))


def build(archive: Path, packages: str, version: str, folder: Path) -> Path:
    """Build PyApp with the archive in it."""
    options = {
        "PYAPP_PROJECT_NAME": "minibroker",
        "PYAPP_PROJECT_VERSION": version,
        "PYAPP_DISTRIBUTION_PATH": str(archive),
        "PYAPP_DISTRIBUTION_EMBED": "1",
        "PYAPP_DISTRIBUTION_PYTHON_PATH": INTERPRETER,
        "PYAPP_DISTRIBUTION_SITE_PACKAGES_PATH": packages,
        "PYAPP_FULL_ISOLATION": "1",
        "PYAPP_SKIP_INSTALL": "1",
        "PYAPP_PASS_LOCATION": "1",
        "PYAPP_EXEC_CODE": START,
        "CARGO_TARGET_DIR": str(TARGET),
        # On Linux it needs no library at all, unlike the Python in it.
        "RUSTFLAGS": "-C target-feature=+crt-static" if sys.platform == "linux" else "",
    }
    # Its build does not notice that the archive or the options changed.
    for fingerprint in TARGET.glob("*/release/.fingerprint/pyapp-*"):
        shutil.rmtree(fingerprint)
    (host,) = re.findall(r"^host: (\S+)", output("rustc", "-vV"), re.MULTILINE)
    command = ["cargo", "install", "pyapp", "--version", PYAPP_VERSION, "--locked", "--force"]
    # With a target, these flags are not those of cargo's own plugins, which cannot be static.
    command += ["--quiet", "--target", host, "--root", str(folder)]
    subprocess.run(command, check=True, env={**os.environ, **options})  # noqa: S603 - our own
    return folder / "bin" / "pyapp"


def main() -> None:
    """Build the executable in ``dist``."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        python = folder / "python"
        if relocatable := os.environ.get(PYTHON_FOLDER):
            shutil.copytree(relocatable, python, symlinks=True, ignore=unneeded)
        else:
            make_python(python)
        packages = install(python)
        archive = folder / "python.tar.zst"
        pack(python, archive)
        (installed,) = packages.glob("minibroker-*.dist-info")
        version = installed.name.removeprefix("minibroker-").removesuffix(".dist-info")
        built = build(archive, str(packages.relative_to(python)), version, folder)
        executable = DIST / f"minibroker-{sys.platform}-{platform.machine()}"
        shutil.copy2(built, executable)
    print(f"{executable.relative_to(ROOT)}: {executable.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

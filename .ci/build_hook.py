"""Compiles modules with mypyc for a wheel, with HATCH_BUILD_HOOKS_ENABLE=1 (docs/adr/0021).

Without the variable it only refuses to build where minibroker does not run: pip builds from the
sdist where no wheel suits, as on Windows. Owns the names of the compiled modules: those below
``minibroker`` have the names of their folders, those below ``protocol`` only the rest of it. It
must never know which modules are compiled; that is a list in pyproject.toml. Invariant: each module
is checked as strictly as by the type checker, and lies beside its source, in the checkout and in
the wheel.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOTS = (".", "protocol")
"""Folders whose packages have the names of their own folders."""

MYPY_ARGUMENTS = (
    "--config-file=",  # The project's says nothing that matters here, and has paths of its own.
    "--strict",
    "--namespace-packages",
    "--explicit-package-bases",
    "--ignore-missing-imports",
)
SETUP = """\
from setuptools import setup
from mypyc.build import mypycify

setup(
    name="compiled",
    package_dir={{"minibroker_protocol": "protocol/minibroker_protocol"}},
    ext_modules=mypycify(
        {arguments!r}, target_dir={target!r}, separate=True, opt_level="2", debug_level="0"
    ),
)
"""


def is_to_compile() -> bool:
    """Whether the modules are to be compiled, by Hatch's own variable."""
    return os.environ.get("HATCH_BUILD_HOOKS_ENABLE", "").lower() in ("1", "true")


class CompiledModules(BuildHookInterface[Any]):
    """Compiles the modules of the option ``include``."""

    def dependencies(self) -> list[str]:
        """Return what compiling needs: mypyc reads the types of the runtime dependencies."""
        if not is_to_compile():
            return []
        return [*self.config["compiler"], *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is written. Raises `RuntimeError` with the compiler's output."""
        del version
        reason = runpy.run_path(str(Path(self.root, "minibroker/platforms.py")))["refusal"]()
        if reason is not None:
            sys.exit(reason)
        if not is_to_compile():
            return
        sources: list[str] = self.config["include"]
        absent = [source for source in sources if not Path(self.root, source).is_file()]
        if absent:
            raise RuntimeError(f"pyproject.toml says to compile {absent}, which do not exist")
        with TemporaryDirectory() as folder:
            setup = Path(folder, "setup.py")
            arguments = [*MYPY_ARGUMENTS, *sources]
            setup.write_text(SETUP.format(arguments=arguments, target=f"{folder}/c"))
            options = ["--inplace", "--build-temp", f"{folder}/objects"]
            self._run([str(setup), "build_ext", *options, "--parallel", str(os.cpu_count() or 1)])
        build_data["infer_tag"] = True
        build_data["pure_python"] = False
        for source in sources:
            module = source.removesuffix(".py")
            build_data["artifacts"] += [f"/{module}.*.so", f"/{module}__mypyc.*.so"]

    def _run(self, arguments: list[str]) -> None:
        path = os.pathsep.join(str(Path(self.root, root)) for root in ROOTS)
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, *arguments],
            check=False,
            cwd=self.root,
            env={**os.environ, "MYPYPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"mypyc failed:\n{done.stdout}")

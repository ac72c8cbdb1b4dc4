"""The command of a Python process of ours that modules in the working directory do not disturb.

Owns the order in which such a process looks for modules. It must never import anything large,
because test processes import it. Invariant: a module of the standard library or of an installed
package is found before one of the same name (`select`, `trio`) that stands in the working directory
or beside a test; what only this process can import is found after them.
"""

from __future__ import annotations

import os
import sys


def python_command(program: str, *arguments: str) -> list[str]:
    """Return the command that runs a program, given as text, with the modules of this process."""
    path = list(dict.fromkeys(os.path.abspath(entry) for entry in sys.path))
    found_last = f"import sys; sys.path += [p for p in {path!r} if p not in sys.path]"
    # With -P the working directory does not come first. With -I, as in the single executable,
    # the folders of PYTHONPATH do not either.
    isolation = "-I" if sys.flags.isolated else "-P"
    return [sys.executable, isolation, "-c", f"{found_last}; {program}", *arguments]

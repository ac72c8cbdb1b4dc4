"""How loops over arrays are compiled.

Owns the options of numba for functions that allocate nothing; it must never know what is computed.
Invariant: a compiled function gives the same result as the plain one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function that allocates no arrays, and cache it on disk.

    Without reference counting of its arguments, which would take several times as long as
    processing a few bytes of them.
    """
    options: Any = {"cache": True, "_nrt": False}
    made: Function = numba.njit(**options)(function)
    return made

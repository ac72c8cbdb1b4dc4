"""CRC-32C, the checksum of record batches, from the ``crc32c`` package.

Owns how that function is found, nothing else. The package's own import also loads its command
line and the metadata of installed packages, which a broker's start would pay with 7 ms and 2 MB
for nothing, so its extension module is loaded alone where it can be. Kafka's ``Crc32C``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def _extension() -> ModuleType:
    package = PathFinder.find_spec("crc32c")
    places = package.submodule_search_locations if package is not None else None
    found = PathFinder.find_spec("crc32c._crc32c", places)
    if found is None or found.loader is None:
        return importlib.import_module("crc32c")
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


crc32c: Callable[..., int] = _extension().crc32c
"""``crc32c(data, value=0)``: the checksum of what holds bytes, continued from ``value``."""

"""Descriptors of this process, counted by what they refer to.

Only files below one directory are counted: descriptors that earlier tests left to the garbage
collector may be closed at any moment.
"""

import os
from pathlib import Path


def open_below(directory: Path) -> int:
    """Return how many descriptors of this process refer to files below the directory."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{directory}/")
        except FileNotFoundError:  # The listing's own descriptor.
            continue
    return count

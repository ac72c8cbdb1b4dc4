"""Fingerprints of directory trees, to detect changes in them.

Owns the walk, which follows no links and changes nothing. The invariant: two trees have the same
fingerprint only if names, contents, link targets and modes are the same.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def fingerprint(root: Path) -> dict[str, str]:
    """Every file, directory and link below ``root``, with a hash of its content and its mode."""
    found = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            if path.is_symlink():
                content = os.readlink(path).encode()
            else:
                content = path.read_bytes() if path.is_file() else b""
            mode = f"{path.lstat().st_mode:o}"
            found[str(path.relative_to(root))] = f"{hashlib.sha256(content).hexdigest()} {mode}"
    return found


def create_foreign_files(root: Path) -> None:
    """Files of a user: folders named like partitions, a log of Kafka, links."""
    (root / "photos-2024").mkdir(parents=True)
    (root / "photos-2024" / "beach.jpg").write_bytes(os.urandom(1000))
    (root / "backup-1").mkdir()
    (root / "backup-1" / f"{0:020d}.log").write_bytes(os.urandom(1000))
    (root / "old-delete").mkdir()
    (root / "link-0").symlink_to(root / "photos-2024")

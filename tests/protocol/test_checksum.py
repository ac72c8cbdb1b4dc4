"""The checksum is CRC-32C, over anything that holds bytes."""

from __future__ import annotations

import subprocess
import sys

import crc32c as package

from minibroker_protocol.checksum import crc32c


def test_crc32c_has_known_check_values() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C (iSCSI, RFC 3720)
    assert crc32c(b"") == 0


def test_crc32c_of_views_and_parts_matches_package() -> None:
    data = bytes(range(256)) * 5
    view = memoryview(bytearray(data))
    assert crc32c(view[3:]) == package.crc32c(data[3:])
    assert crc32c(view[100:], crc32c(view[:100])) == package.crc32c(data)


def test_checksum_import_does_not_load_importlib_metadata() -> None:
    program = (
        "import sys, minibroker_protocol.checksum; sys.exit('importlib.metadata' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

"""Names of rare paths that actors count.

It must never know the broker. Invariant: ``sometimes.PATHS`` has all of them.
"""

from __future__ import annotations

from typing import Final

CONCURRENT: Final = "CONCURRENT_TRANSACTIONS"
ZOMBIE_FENCED: Final = "zombie fenced"
GIVEN_UP: Final = "transaction given up"
KILLED: Final = "process killed"
KILLED_AT_END: Final = "process killed at the end of a transaction"
KILLED_AT_SYNC: Final = "process killed while an assignment is stored"
KILLED_AT_COMMIT: Final = "process killed while offsets are committed"
KILLED_WHILE_HELD: Final = "process killed while a request was held"
KILLED_AT_ACKNOWLEDGEMENT: Final = "process killed while records are acknowledged"
LATE_ACKNOWLEDGEMENT: Final = "records acknowledged about when their locks expire"
COMMITTED: Final = "transaction committed"
LATE_COMMIT: Final = "commit of a member without a response"
DESCRIPTION_SHOWN: Final = "description of a topology shown"

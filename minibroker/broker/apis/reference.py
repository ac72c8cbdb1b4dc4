"""Reference page of the APIs, generated from the registry.

Every fact comes from the APIs themselves. Invariant: the committed page equals the output of this
module (``make docs``, and a test).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from minibroker.broker.apis.base import ServedApi
from minibroker.broker.apis.control_requests import CONTROL_REQUESTS
from minibroker.broker.apis.registry import APIS
from minibroker_protocol import registry

_INTRODUCTION = """\
# APIs

The APIs and versions that this broker serves, and the parts of each API that it does not serve.
Other APIs and versions are not advertised in ApiVersions; the broker closes the connection of a
client that requests them, as Kafka does.

| Key | API | Versions | Not served, and why |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The whole page as Markdown."""
    return _INTRODUCTION + "".join(_rows())


def _rows() -> Iterator[str]:
    for key, api in sorted(APIS.items()):
        left_out = "<br>".join(api.left_out)
        yield f"| {key} | {registry.schema(key).name} | {_versions(api)} | {left_out} |\n"


def _versions(api: ServedApi) -> str:
    (low, high), lowest = api.versions, api.served[0]
    if api.key in CONTROL_REQUESTS:
        return f"{low}–{high} (advertised only with ZooKeeper)"  # noqa: RUF001 - a range
    if lowest == low:
        return f"{low}–{high}" if low < high else f"{low}"  # noqa: RUF001 - a range
    return f"{lowest}–{high} (advertised from {low})"  # noqa: RUF001 - a range


if __name__ == "__main__":
    sys.stdout.write(page())

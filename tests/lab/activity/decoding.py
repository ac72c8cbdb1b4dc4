"""The events in the records of the activity topic, in either format."""

from __future__ import annotations

import json
from typing import Any

from minibroker.lab.activity.arrow_format import event_of, is_batch, read_batch


def events_in(value: bytes) -> list[dict[str, Any]]:
    """The events of a record, as their JSON objects."""
    if is_batch(value):
        return [event_of(row) for row in read_batch(value).to_pylist()]
    return [json.loads(value)]

"""Any history, however little sense it makes, gets a report, and the one that the definitions give.

The definitions are written here a second time, as short as they can be said and without any index.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.lab.checker.checking import CheckReport, check_lines
from tests.lab.checker.written import header

Line = dict[str, Any]
KEYS = st.sampled_from(["a", "b"])
POLLED = st.dictionaries(
    KEYS,
    st.lists(st.lists(st.integers(0, 6), min_size=2, max_size=2), max_size=5),
    max_size=2,
)
OPERATION = st.fixed_dictionaries({
    "process": st.integers(0, 2),
    "result": st.sampled_from(["ok", "ok", "ok", "fail", "unknown", None]),
    "sends": st.lists(st.tuples(KEYS, st.none() | st.integers(0, 6)), max_size=3),
    "polled": POLLED,
    "rebalanced": st.lists(KEYS, max_size=1),
})  # fmt: skip


def history_of(operations: list[dict[str, Any]]) -> list[Line]:
    """Give each send a value, and write the lines; a process without completion stops."""
    lines = []
    values = {"a": 0, "b": 0}
    stopped: set[int] = set()
    for operation in operations:
        process = operation["process"]
        if process in stopped:
            continue
        steps: list[Line] = []
        for key, offset in operation["sends"]:
            steps.append({"send": key, "value": values[key], "offset": offset})
            values[key] += 1
        line = {"process": process, "operation": "txn"}
        invoked = [{name: step[name] for name in ("send", "value")} for step in steps]
        lines.append({**line, "type": "invoke", "steps": [*invoked, {"poll": {}}]})
        if operation["result"] is None:
            stopped.add(process)
            continue
        done = {**line, "type": operation["result"], "rebalanced": operation["rebalanced"]}
        lines.append({**done, "steps": [*steps, {"poll": operation["polled"]}]})
    return lines


def completions(lines: list[Line]) -> list[Line]:
    """The completions, and the invocations without one as operations of unknown outcome."""
    numbered = [{**line, "number": number} for number, line in enumerate(lines)]
    done: list[Line] = []
    last: dict[int, Line] = {}
    for line in numbered:
        if line["type"] != "invoke":
            done.append({**line, "invoked": last[line["process"]]["number"]})
        last[line["process"]] = line
    open_ = [
        {**each, "invoked": each["number"]} for each in last.values() if each["type"] == "invoke"
    ]
    return [*done, *({**line, "type": "unknown", "rebalanced": []} for line in open_)]


def sends_of(line: Line, key: str) -> list[Line]:
    return [step for step in line["steps"] if step.get("send") == key]


def polls_of(line: Line, key: str) -> list[tuple[int, int]]:
    return [
        (offset, value)
        for step in line["steps"]
        for offset, value in step.get("poll", {}).get(key, ())
    ]


class Naive:
    """The rows of single values for one key, straight from their definitions."""

    def __init__(self, lines: list[Line], key: str) -> None:
        done = completions(lines)
        self.sent = {step["value"] for line in lines for step in sends_of(line, key)}
        self.polled_ok = {
            value for line in done if line["type"] == "ok" for _, value in polls_of(line, key)
        }
        self.polled = {value for line in done for _, value in polls_of(line, key)}
        self.lines = done
        self.key = key
        everything_ok = {
            (other, value)
            for other in ("a", "b")
            for line in done
            if line["type"] == "ok"
            for _, value in polls_of(line, other)
        }
        self.committed = [
            line
            for line in done
            if line["type"] == "ok"
            or (
                line["type"] == "unknown"
                and any(
                    (step["send"], step["value"]) in everything_ok
                    for step in line["steps"]
                    if "send" in step
                )
            )
        ]
        places = {place for line in done for place in polls_of(line, key)}
        for line in self.committed:
            for step in sends_of(line, key):
                if step.get("offset") is not None:
                    places.add((step["offset"], step["value"]))
        self.places = places

    def inconsistent(self) -> set[int]:
        offsets = {offset for offset, _ in self.places}
        return {each for each in offsets if len(self.values_at(each)) > 1}

    def values_at(self, offset: int) -> set[int]:
        return {value for at, value in self.places if at == offset}

    def offsets_of(self, value: int) -> set[int]:
        return {offset for offset, found in self.places if found == value}

    def duplicates(self) -> set[int]:
        return {value for _, value in self.places if len(self.offsets_of(value)) > 1}

    def lost(self) -> set[int]:
        bound = max((min(self.offsets_of(value)) for value in self.polled_ok), default=-1)
        return self.lost_without_offset(bound) | {
            step["value"]
            for line in self.committed
            for step in sends_of(line, self.key)
            if step["value"] not in self.polled_ok
            and self.offsets_of(step["value"])
            and max(self.offsets_of(step["value"])) <= bound
        }

    def lost_without_offset(self, bound: int) -> set[int]:
        """Committed values that are nowhere, but before a value that is not above the bound.

        That is a later value of the same operation, or one of an operation that was invoked when
        this one was known to be committed.
        """
        if not self.polled_ok:
            return set()
        writers = {step["value"]: line for line in self.lines for step in sends_of(line, self.key)}
        passed = {value for _, value in self.places if min(self.offsets_of(value)) <= bound}
        found = set()
        for line in self.committed:
            values = [step["value"] for step in sends_of(line, self.key)]
            for position, value in enumerate(values):
                if self.offsets_of(value):
                    continue
                is_before = not passed.isdisjoint(values[position + 1 :])
                if is_before or any(
                    writers[other]["invoked"] > self.proof_of(line)
                    for other in passed & writers.keys()
                ):
                    found.add(value)
        return found

    def proof_of(self, line: Line) -> int:
        """The completion of an ok operation, or of the first one that polled a value of another."""
        if line["type"] == "ok":
            return int(line["number"])
        sent = {(step["send"], step["value"]) for step in line["steps"] if "send" in step}
        return min(
            int(reader["number"])
            for reader in self.lines
            if reader["type"] == "ok"
            and any(
                (key, value) in sent for key in ("a", "b") for _, value in polls_of(reader, key)
            )
        )

    def unseen(self) -> set[int]:
        committed = {step["value"] for line in self.committed for step in sends_of(line, self.key)}
        return committed - self.polled - self.lost()

    def foreign(self) -> Iterator[str]:
        failed = {
            step["value"]
            for line in self.lines
            if line["type"] == "fail"
            for step in sends_of(line, self.key)
        }
        for line in self.lines:
            own = {step["value"] for step in sends_of(line, self.key)}
            for value in {value for _, value in polls_of(line, self.key)}:
                if value not in self.sent:
                    yield "phantom-read"
                elif value in own:
                    yield "precommitted-read"
                elif value in failed and line["type"] == "ok":
                    yield "aborted-read"

    def backward_polls(self) -> int:
        """Successive polls within an operation whose offsets do not increase."""
        return sum(
            later[0] <= earlier[0]
            for line in self.lines
            if self.key not in line["rebalanced"]
            for earlier, later in zip(
                polls_of(line, self.key), polls_of(line, self.key)[1:], strict=False
            )
        )


def expected_counts(lines: list[Line]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for key in ("a", "b"):
        naive = Naive(lines, key)
        rows = {
            "inconsistent-offsets": len(naive.inconsistent()),
            "duplicate": len(naive.duplicates()),
            "lost-write": len(naive.lost()),
            "unseen": len(naive.unseen()),
            "internal-nonmonotonic-poll": naive.backward_polls(),
        }
        for name in naive.foreign():
            rows[name] = rows.get(name, 0) + 1
        for name, count in rows.items():
            counts[name] = counts.get(name, 0) + count
    return {name: count for name, count in counts.items() if count}


ROWS = {
    *("inconsistent-offsets", "duplicate", "lost-write", "unseen", "internal-nonmonotonic-poll"),
    *("phantom-read", "precommitted-read", "aborted-read"),
}


@settings(max_examples=400)
@given(st.lists(OPERATION, max_size=8))
def test_report_of_any_history_follows_the_definitions(operations: list[dict[str, Any]]) -> None:
    lines = history_of(operations)
    report = check_lines([header(), *lines])
    assert {name: count for name, count in report.counts.items() if name in ROWS} == (
        expected_counts(lines)
    )
    assert_is_complete(report)


def assert_is_complete(report: CheckReport) -> None:
    """A report can be printed, and gives an example of everything that it counts."""
    assert str(report).endswith("\nvalid") is report.valid
    assert report.to_json()["valid"] is report.valid
    assert report.examples.keys() == report.counts.keys()

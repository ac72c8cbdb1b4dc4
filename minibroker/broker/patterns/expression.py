"""Matching of whole texts with patterns in RE2's syntax, in time linear in the text.

Owns the compiled form, which is a list of instructions that is run for all alternatives at once
(Thompson's construction), and the cache of its steps. It must never know what the texts are.
Invariant: a step costs at most one visit of each instruction, and the steps of one call and those
in the cache are limited, so that no pattern takes much time or memory. Kafka uses RE2/J's
``Pattern.matches`` for transactional ids, and Java's own for the clients that push metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.patterns.expression_parser import (
    Assertion,
    CharSet,
    Choice,
    InvalidPattern,
    Pattern,
    Repeat,
    parse_pattern,
)

INSTRUCTIONS_MAX: Final = 5_000
VISITS_MAX: Final = 500_000
"""Visits of instructions in one call; those of remembered steps are free."""
POSITIONS_KEPT_MAX: Final = 20_000
"""Positions in all remembered steps; if there are more, the steps are computed again."""


class PatternTooCostly(Exception):
    """A pattern needs more than ``VISITS_MAX`` visits for the texts of one call."""


class Split(NamedTuple):
    """Continue at each of these instructions."""

    targets: tuple[int, ...]


class Found(NamedTuple):
    """The whole pattern was found."""


Instruction: TypeAlias = CharSet | Assertion | Split | Found
Positions: TypeAlias = frozenset[int]

_WORD: Final = parse_pattern(r"\w")


class CompiledPattern:
    """A pattern that can be compared with texts. Raises InvalidPattern if it is none."""

    def __init__(self, text: str, instructions_max: int = INSTRUCTIONS_MAX) -> None:
        self._instructions_max = instructions_max
        self._program: list[Instruction] = []
        self._add(parse_pattern(text))
        self._append(Found())
        self._steps: dict[tuple[Positions, str, str], Positions] = {}
        self._positions_kept = 0
        self._visits = 0

    def matches(self, text: str) -> bool:
        """Whether the pattern matches the text from its start to its end.

        Raises PatternTooCostly.
        """
        return bool(self.select((text,)))

    def select(self, texts: Iterable[str]) -> list[str]:
        """The texts that the pattern matches from start to end. Raises PatternTooCostly."""
        self._visits = 0
        return [text for text in texts if self._matches(text)]

    def _matches(self, text: str) -> bool:
        positions: Positions = frozenset({0})
        before = ""
        for char in text:
            key = positions, _kind(before), char
            following = self._steps.get(key)
            if following is None:
                following = self._step(positions, before, char)
                self._keep(key, following)
            if not following:
                return False
            positions, before = following, char
        reached = self._closure(positions, before, "")
        return any(isinstance(self._program[each], Found) for each in reached)

    def _keep(self, key: tuple[Positions, str, str], following: Positions) -> None:
        if self._positions_kept > POSITIONS_KEPT_MAX:
            self._steps.clear()
            self._positions_kept = 0
        self._steps[key] = following
        self._positions_kept += 1 + len(following)

    def _step(self, positions: Positions, before: str, char: str) -> Positions:
        """The positions after a character."""
        following = set()
        answers: dict[int, bool] = {}
        for each in self._closure(positions, before, char):
            instruction = self._program[each]
            if not isinstance(instruction, CharSet):
                continue
            # Copies of a repeated set are one object, and it may have thousands of ranges.
            has = answers.get(id(instruction))
            if has is None:
                has = answers[id(instruction)] = instruction.has(char)
                self._visits += len(instruction.ranges) + len(instruction.sets)
            if has:
                following.add(each + 1)
        return frozenset(following)

    def _closure(self, positions: Positions, before: str, after: str) -> set[int]:
        """The positions that can be reached without a character, between these two."""
        reached: set[int] = set()
        pending = list(positions)
        while pending:
            each = pending.pop()
            if each in reached:
                continue
            reached.add(each)
            instruction = self._program[each]
            if isinstance(instruction, Split):
                pending += instruction.targets
                self._visits += len(instruction.targets)
            elif isinstance(instruction, Assertion) and _holds(instruction.kind, before, after):
                pending.append(each + 1)
        self._visits += len(reached)
        if self._visits > VISITS_MAX:
            raise PatternTooCostly(f"the pattern needs more than {VISITS_MAX} steps")
        return reached

    def _append(self, instruction: Instruction) -> int:
        if len(self._program) >= self._instructions_max:
            problem = f"the pattern has more than {self._instructions_max} instructions"
            raise InvalidPattern(problem)
        self._program.append(instruction)
        return len(self._program) - 1

    def _add(self, tree: Pattern) -> None:
        """Add the instructions of a pattern, at least one, which continue after their end."""
        if isinstance(tree, CharSet | Assertion):
            self._append(tree)
        elif isinstance(tree, Repeat):
            self._add_repeat(tree)
        elif isinstance(tree, Choice):
            start = self._append(Split(()))
            starts, ends = [], []
            for part in tree.parts:
                starts.append(len(self._program))
                self._add(part)
                ends.append(self._append(Split(())))
            self._program[start] = Split(tuple(starts))
            for end in ends:
                self._program[end] = Split((len(self._program),))
        elif tree.parts:
            for part in tree.parts:
                self._add(part)
        else:
            self._add_nothing()

    def _add_nothing(self) -> None:
        """Add one instruction all the same, so that repetitions of nothing are limited, too."""
        self._append(Split((len(self._program) + 1,)))

    def _add_repeat(self, tree: Repeat) -> None:
        if tree.most == 0:
            self._add_nothing()
        for _ in range(tree.least):
            self._add(tree.part)
        if tree.most is None:
            start = self._append(Split(()))
            self._add(tree.part)
            self._append(Split((start,)))
            self._program[start] = Split((start + 1, len(self._program)))
            return
        starts = []
        for _ in range(tree.most - tree.least):
            starts.append(self._append(Split(())))
            self._add(tree.part)
        for start in starts:
            self._program[start] = Split((start + 1, len(self._program)))


def _kind(char: str) -> str:
    """What assertions distinguish: no character, a newline, part of a word, or another one."""
    if char in ("", "\n"):
        return char
    return "w" if _is_word(char) else "."


def _is_word(char: str) -> bool:
    assert isinstance(_WORD, CharSet)
    return char != "" and _WORD.has(char)


def _holds(kind: str, before: str, after: str) -> bool:
    """Whether an assertion holds between two characters; an empty one is the text's border."""
    if kind in "bB":
        return (_is_word(before) is not _is_word(after)) is (kind == "b")
    char = before if kind in "A^" else after
    return char == "" or (kind in "^$" and char == "\n")

"""Matching of whole texts with patterns in RE2's syntax, in time linear in the text.

Owns the compiled form, which is a list of instructions that is run for all alternatives at once
(Thompson's construction), and the cache of its steps. It must never know what the texts are.
Invariant: a step costs at most one visit of each instruction, of which a pattern has at most
`INSTRUCTIONS_MAX`, so no pattern takes exponential time. Kafka uses RE2/J's ``Pattern.matches``.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from minibroker.coordinator.pattern_parser import (
    Assertion,
    CharSet,
    Choice,
    InvalidPattern,
    Pattern,
    Repeat,
    parse_pattern,
)

INSTRUCTIONS_MAX: Final = 5_000
STEPS_MAX: Final = 10_000
"""Remembered steps; if there are more, they are computed again."""


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

    def __init__(self, text: str) -> None:
        self._program: list[Instruction] = []
        self._add(parse_pattern(text))
        self._append(Found())
        self._steps: dict[tuple[Positions, str, str], Positions] = {}

    def matches(self, text: str) -> bool:
        """Whether the pattern matches the text from its start to its end."""
        positions: Positions = frozenset({0})
        before = ""
        for char in text:
            key = positions, _kind(before), char
            following = self._steps.get(key)
            if following is None:
                if len(self._steps) >= STEPS_MAX:
                    self._steps.clear()
                following = self._steps[key] = self._step(positions, before, char)
            if not following:
                return False
            positions, before = following, char
        reached = self._closure(positions, before, "")
        return any(isinstance(self._program[each], Found) for each in reached)

    def _step(self, positions: Positions, before: str, char: str) -> Positions:
        """The positions after a character."""
        following = set()
        for each in self._closure(positions, before, char):
            instruction = self._program[each]
            if isinstance(instruction, CharSet) and instruction.has(char):
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
            elif isinstance(instruction, Assertion) and _holds(instruction.kind, before, after):
                pending.append(each + 1)
        return reached

    def _append(self, instruction: Instruction) -> int:
        if len(self._program) >= INSTRUCTIONS_MAX:
            raise InvalidPattern(f"the pattern has more than {INSTRUCTIONS_MAX} instructions")
        self._program.append(instruction)
        return len(self._program) - 1

    def _add(self, tree: Pattern) -> None:
        """Add the instructions of a pattern, which continue after their end."""
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
        else:
            for part in tree.parts:
                self._add(part)

    def _add_repeat(self, tree: Repeat) -> None:
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

"""Regular expressions in RE2's syntax, which Kafka uses where clients send patterns.

Owns the syntax, what is refused (what RE2 has no linear time for: references to groups, looking
around; repetitions of repetitions, and counts of more than a thousand), the compiled form, which is
a list of instructions that is run for all alternatives at once (Thompson's construction), and the
cache of its steps. It must never know what the texts are. Invariants: the tree of an accepted
pattern is at most `DEPTH_MAX` deep; matching of a whole text takes time linear in it: a step costs
at most one visit of each instruction, and the steps of one call and those in the cache are limited,
so that no pattern takes much time or memory. Kafka uses RE2/J's ``Pattern.matches`` for
transactional ids, and Java's own for the clients that push metrics; unlike RE2/J, scripts such as
``\\p{Greek}`` are refused, because Python has no table of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

REPETITIONS_MAX: Final = 1000
"""RE2's limit of the numbers in braces."""

DEPTH_MAX: Final = 100
"""Groups within groups."""

PATTERN_CHARS_MAX: Final = 4096

CODE_POINT_MAX: Final = 0x10FFFF


class InvalidPattern(ValueError):
    """The text is not a pattern in RE2's syntax."""


class CharSet(NamedTuple):
    """A set of characters: ranges of code points, Unicode categories and other sets."""

    ranges: tuple[tuple[int, int], ...] = ()
    categories: tuple[str, ...] = ()
    sets: tuple[CharSet, ...] = ()
    negated: bool = False
    ignores_case: bool = False

    def has(self, char: str) -> bool:
        """Whether the character is in the set."""
        forms = {char, char.lower(), char.upper()} if self.ignores_case else (char,)
        return any(self._contains(form) for form in forms if len(form) == 1) is not self.negated

    def _contains(self, char: str) -> bool:
        code = ord(char)
        return (
            any(low <= code <= high for low, high in self.ranges)
            or any(unicodedata.category(char).startswith(name) for name in self.categories)
            or any(each.has(char) for each in self.sets)
        )


class Sequence(NamedTuple):
    """Patterns one after another; none of them is the empty pattern."""

    parts: tuple[Pattern, ...]


class Choice(NamedTuple):
    """One of several patterns."""

    parts: tuple[Pattern, ...]


class Repeat(NamedTuple):
    """A pattern ``least`` to ``most`` times; None is without limit."""

    part: Pattern
    least: int
    most: int | None


class Assertion(NamedTuple):
    """A position: ``A`` or ``z`` for an end of the text, ``^`` or ``$`` of a line, ``b``, ``B``."""

    kind: str


Pattern: TypeAlias = CharSet | Sequence | Choice | Repeat | Assertion


def _set(*ranges: str, negated: bool = False) -> CharSet:
    return CharSet(tuple((ord(each[0]), ord(each[-1])) for each in ranges), negated=negated)


ANY: Final = CharSet(((0, CODE_POINT_MAX),))
NOT_NEWLINE: Final = _set("\n", negated=True)
_PERL: Final = {
    "d": _set("09"),
    "s": _set("\t\n", "\f\r", " "),
    "w": _set("09", "AZ", "az", "_"),
}
_POSIX: Final = {
    "alnum": _set("09", "AZ", "az"),
    "alpha": _set("AZ", "az"),
    "ascii": _set("\0\x7f"),
    "blank": _set("\t", " "),
    "cntrl": _set("\0\x1f", "\x7f"),
    "digit": _PERL["d"],
    "graph": _set("!~"),
    "lower": _set("az"),
    "print": _set(" ~"),
    "punct": _set("!/", ":@", "[`", "{~"),
    "space": _set("\t\r", " "),
    "upper": _set("AZ"),
    "word": _PERL["w"],
    "xdigit": _set("09", "AF", "af"),
}
_CONTROLS: Final = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_CATEGORIES: Final = {
    "C": "cfos",
    "L": "lmotu",
    "M": "cen",
    "N": "dlo",
    "P": "cdefios",
    "S": "ckmo",
    "Z": "lps",
}
"""The second letters of Unicode's categories by the first, which is a category itself."""
_LIMITS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_DIGITS_MAX: Final = 9
"""Digits of a number that are read; longer numbers are too large in any case."""
_OCTAL: Final = "01234567"
_HEX: Final = "0123456789abcdefABCDEF"
_FLAGS: Final = "imsU"


def parse_pattern(text: str) -> Pattern:
    """The tree of a pattern. Raises InvalidPattern."""
    if len(text) > PATTERN_CHARS_MAX:
        raise InvalidPattern(f"the pattern has more than {PATTERN_CHARS_MAX} characters")
    parser = _Parser(text)
    tree = parser.choice(0)
    if not parser.at_end():
        raise InvalidPattern(f"unexpected ): {text}")
    return tree


class _Parser:
    """The text of a pattern, the position in it, and the flags in force there."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags: frozenset[str] = frozenset()
        self._names: set[str] = set()

    def at_end(self) -> bool:
        return self._at == len(self._text)

    def _next_is(self, prefix: str) -> bool:
        return self._text.startswith(prefix, self._at)

    def _skip(self, prefix: str) -> bool:
        """Step over these characters if they are next."""
        if not self._next_is(prefix):
            return False
        self._at += len(prefix)
        return True

    def _take(self) -> str:
        if self.at_end():
            raise InvalidPattern(f"unexpected end: {self._text}")
        self._at += 1
        return self._text[self._at - 1]

    def _take_until(self, suffix: str) -> str:
        """The characters before the next ``suffix``, which is stepped over."""
        end = self._text.find(suffix, self._at)
        if end < 0:
            raise InvalidPattern(f"{suffix} is missing: {self._text}")
        taken = self._text[self._at : end]
        self._at = end + len(suffix)
        return taken

    def choice(self, depth: int) -> Pattern:
        """Patterns between bars, up to the end of the group."""
        if depth > DEPTH_MAX:
            raise InvalidPattern(f"more than {DEPTH_MAX} groups within groups")
        before = self._flags
        parts = [self._sequence(depth)]
        while self._skip("|"):
            parts.append(self._sequence(depth))
        self._flags = before
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, depth: int) -> Pattern:
        parts: list[Pattern] = []
        can_repeat = False
        while not self.at_end() and not self._next_is("|") and not self._next_is(")"):
            limits = self._limits()
            if limits is not None:
                if not can_repeat:
                    raise InvalidPattern(f"nothing to repeat: {self._text}")
                parts.append(Repeat(parts.pop(), *limits))
                can_repeat = False  # RE2 has no repetition of a repetition.
                continue
            added = self._atom(depth)
            parts += added
            can_repeat = bool(added)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _limits(self) -> tuple[int, int | None] | None:
        """How often the pattern before is repeated; None if the next character is no operator."""
        limits = _LIMITS.get(self._text[self._at])
        if limits is not None:
            self._at += 1
        else:
            limits = self._counted_limits()
        if limits is not None:
            self._skip("?")  # Lazy or not, the same texts match.
        return limits

    def _counted_limits(self) -> tuple[int, int | None] | None:
        """Limits in braces; braces with anything else are ordinary characters."""
        end = self._text.find("}", self._at)
        if not self._next_is("{") or end < 0:
            return None
        least, comma, most = self._text[self._at + 1 : end].partition(",")
        if not (_is_number(least) and (most == "" or _is_number(most))):
            return None
        self._at = end + 1
        low = int(least[:_DIGITS_MAX])
        high = int(most[:_DIGITS_MAX]) if most else None if comma else low
        if max(low, high or 0) > REPETITIONS_MAX or (high is not None and high < low):
            raise InvalidPattern(f"invalid repetition {{{least}{comma}{most}}}: {self._text}")
        return low, high

    def _atom(self, depth: int) -> list[Pattern]:
        """The pattern of the next characters; none for flags, several for a quotation."""
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return [self._bracket()]
        if char == ".":
            return [ANY if "s" in self._flags else NOT_NEWLINE]
        if char == "^":
            return [Assertion("^" if "m" in self._flags else "A")]
        if char == "$":
            return [Assertion("$" if "m" in self._flags else "z")]
        if char == "\\":
            return self._escaped_atom()
        return [self._literal(char)]

    def _literal(self, char: str) -> CharSet:
        return self._with_case(CharSet(((ord(char), ord(char)),)))

    def _with_case(self, found: CharSet) -> CharSet:
        return found._replace(ignores_case=True) if "i" in self._flags else found

    def _group(self, depth: int) -> list[Pattern]:
        before = self._flags
        if self._skip("?P<") or (not self._is_looking_behind() and self._skip("?<")):
            name = self._take_until(">")
            if not name.replace("_", "a").isalnum() or not name.isascii() or name in self._names:
                raise InvalidPattern(f"invalid name of a group: {name}")
            self._names.add(name)
        elif self._skip("?") and not self._set_flags():
            return []
        tree = self.choice(depth + 1)
        if not self._skip(")"):
            raise InvalidPattern(f") is missing: {self._text}")
        self._flags = before
        return [tree]

    def _is_looking_behind(self) -> bool:
        return self._next_is("?<=") or self._next_is("?<!")

    def _set_flags(self) -> bool:
        """Apply flags; return whether a group follows, which they are for."""
        on, sign, off = set(self._flags), True, False
        while True:
            char = self._take()
            if char in _FLAGS:
                (on.add if sign else on.discard)(char)
                off = True
            elif char == "-" and sign:
                sign, off = False, False
            elif char in ":)" and (sign or off):
                self._flags = frozenset(on)
                return char == ":"
            else:
                raise InvalidPattern(f"invalid group: {self._text}")

    def _escaped_atom(self) -> list[Pattern]:
        if self._skip("Q"):
            end = self._text.find("\\E", self._at)
            quoted = self._text[self._at :] if end < 0 else self._text[self._at : end]
            self._at += len(quoted) + (0 if end < 0 else 2)
            return [self._literal(char) for char in quoted]
        for kind in "AzbB":
            if self._skip(kind):
                return [Assertion(kind)]
        return [self._escaped_class() or self._literal(chr(self._escaped_char()))]

    def _escaped_class(self) -> CharSet | None:
        """The set of ``\\d``, ``\\pL`` and the like, after the backslash; None for others."""
        if self.at_end():
            return None
        char = self._text[self._at]
        if char.lower() in _PERL:
            self._at += 1
            return self._with_case(_PERL[char.lower()]._replace(negated=char.isupper()))
        if char not in "pP":
            return None
        self._at += 1
        name = self._take_until("}") if self._skip("{") else self._take()
        negated = (char == "P") is not name.startswith("^")
        name = name.removeprefix("^")
        if name == "Any":
            return ANY._replace(negated=negated)
        if not _is_category(name):
            raise InvalidPattern(f"invalid character class {name}: {self._text}")
        return self._with_case(CharSet(categories=(name,), negated=negated))

    def _escaped_char(self) -> int:
        char = self._take()
        if char in _OCTAL:
            return self._octal(char)
        if char == "x":
            digits = self._take_until("}") if self._skip("{") else self._take() + self._take()
            is_hex = digits != "" and all(digit in _HEX for digit in digits)
            if not is_hex or int(digits, 16) > CODE_POINT_MAX:
                raise InvalidPattern(f"invalid escape: {self._text}")
            return int(digits, 16)
        if char in _CONTROLS:
            return _CONTROLS[char]
        if not (char.isascii() and char.isalnum()):
            return ord(char)
        raise InvalidPattern(f"invalid escape \\{char}: {self._text}")

    def _octal(self, first: str) -> int:
        digits = first
        while len(digits) < 3 and not self.at_end() and self._text[self._at] in _OCTAL:
            digits += self._take()
        if first != "0" and len(digits) == 1:
            raise InvalidPattern(f"a reference to a group: {self._text}")
        return int(digits, 8)

    def _bracket(self) -> CharSet:
        negated = self._skip("^")
        ranges: list[tuple[int, int]] = []
        sets: list[CharSet] = []
        is_first = True
        while is_first or not self._next_is("]"):
            is_first = False
            found = self._bracket_class()
            if found is not None:
                sets.append(found)
                continue
            low = high = self._bracket_char()
            if self._next_is("-") and not self._next_is("-]"):
                self._take()
                high = self._bracket_char()
            if high < low:
                raise InvalidPattern(f"invalid range of characters: {self._text}")
            ranges.append((low, high))
        self._take()
        return self._with_case(CharSet(tuple(ranges), (), tuple(sets), negated))

    def _bracket_class(self) -> CharSet | None:
        if self._next_is("[:") and self._text.find(":]", self._at + 2) >= 0:
            self._skip("[:")
            name = self._take_until(":]")
            found = _POSIX.get(name.removeprefix("^"))
            if found is None:
                raise InvalidPattern(f"invalid character class {name}: {self._text}")
            return found._replace(negated=name.startswith("^"))
        if not self._next_is("\\"):
            return None
        self._take()
        escaped = self._escaped_class()
        if escaped is None:
            self._at -= 1
        return escaped

    def _bracket_char(self) -> int:
        char = self._take()
        return self._escaped_char() if char == "\\" else ord(char)


def _is_category(name: str) -> bool:
    return name[:1] in _CATEGORIES and (name[1:] == "" or name[1:] in [*_CATEGORIES[name[0]]])


def _is_number(text: str) -> bool:
    """Whether the text is a number as in ``{2}``: digits, without superfluous zeros."""
    is_digits = text.isascii() and text.isdigit()
    return is_digits and (text == "0" or not text.startswith("0"))


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

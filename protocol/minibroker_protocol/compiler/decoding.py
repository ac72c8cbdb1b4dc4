"""Generates the function that decodes one version of a message.

Owns the shape of decoding: positions instead of streams, adjacent fields of fixed width read by one
`unpack_from`, objects created without `__init__`, a compact length of one byte read without a call.
It knows construct's nodes and no message. Invariants: every length and count is compared with the
remaining bytes before it is used, the number of all elements is limited, and no exception but
`DecodeError` is raised. When a line fails, `pos` is the position of its value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import construct as cs

from minibroker_protocol.errors import DecodeError
from minibroker_protocol.schema import Field
from minibroker_protocol.types import (
    STRING_LENGTH_MAX,
    ArrayNode,
    BytesNode,
    LengthPrefixed,
    NullableNode,
    ObjectNode,
    SignedVarint,
    StringNode,
    TaggedFieldsNode,
    UnsignedVarint,
)
from minibroker_protocol.wire import (
    ELEMENTS_MAX,
    REQUEST_ELEMENTS_MAX,
    Malformed,
    Numbers,
    read_unknown_tagged,
    read_uvarint,
    read_varint,
)

# ---------------- Writer for both generators: lines, the names they use, and the field of each line
# Owns the text of one function and the names bound for it, and knows no type of the protocol.
# Invariant: a line that can fail on bad input is mapped to the path of its field, so that a failure
# is located by its line number and successful decoding costs nothing for it.


# Bytes that each struct code takes; "16s" is a UUID and "x" a byte of zero.
WIDTHS = {"b": 1, "B": 1, "?": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}


class Slot(NamedTuple):
    """A fixed-width value waiting to be read or written together with its neighbours."""

    code: str
    expression: str
    path: str


class Source:
    """One function being written."""

    def __init__(self, title: str, signature: str) -> None:
        self.title = title
        self.lines = [signature]
        self.names: dict[str, Any] = {}
        self.paths: dict[int, tuple[Slot, ...]] = {}
        self._indent = 1
        self._serial = 0

    def line(self, text: str, path: str = "") -> None:
        """Add a line at the current depth; `path` says which field it reads or writes."""
        self.lines.append("    " * self._indent + text)
        if path:
            self.paths[len(self.lines)] = (Slot("", "", path),)

    def fixed(self, text: str, slots: list[Slot]) -> None:
        """Add a line that reads all `slots` at once."""
        self.line(text)
        self.paths[len(self.lines)] = tuple(slots)

    @contextmanager
    def block(self, opening: str, path: str = "") -> Iterator[None]:
        """Write a line, and indent what is written inside."""
        self.line(opening, path)
        self._indent += 1
        yield
        self._indent -= 1

    def fresh(self, stem: str) -> str:
        """A local name that nothing else has."""
        self._serial += 1
        return f"{stem}{self._serial}"

    def bind(self, name: str, value: Any) -> str:
        """Make `value` known to the function as `name`, or as a name like it if that is taken."""
        bound = self.names.setdefault(name, value)
        if bound is value or (isinstance(value, (int, str, bytes)) and bound == value):
            return name
        return self.bind(f"{name}_", value)

    def bind_struct(self, prefix: str, method: str, codes: str) -> str:
        """Make a struct method for `codes` known, one name for each combination."""
        name = f"{prefix}_{codes.replace('?', 'Z')}"
        if name not in self.names:
            self.names[name] = getattr(struct.Struct(f">{codes}"), method)
        return name

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def function(self) -> Callable[..., Any]:
        """Compile the written text and return its first function."""
        name = self.lines[0].split("(")[0].removeprefix("def ")
        environment = dict(self.names)
        code = compile(self.text(), f"<{name} {self.title}>", "exec")
        exec(code, environment)  # noqa: S102 - written by this package from declarations only
        made: Callable[..., Any] = environment[name]
        return made


def fixed_code(node: Any) -> str | None:
    """The struct code of a fixed-width construct node, None for any other node."""
    if isinstance(node, cs.FormatField):
        code = str(node.fmtstr[-1])
        return {"l": "i", "L": "I"}.get(code, code)  # equivalent codes, in one spelling
    if isinstance(node, cs.Flag.__class__):
        return "?"
    if isinstance(node, cs.Bytes):
        return f"{node.length}s"
    return None


_FAILURES: Final = (struct.error, IndexError, UnicodeDecodeError, Malformed)
_NUMBERS: Final = {code: Numbers(code, "unpack_from") for code in "bhiqHId"}


def emit(node: ObjectNode, title: str, *, locates: bool = False) -> Source:
    """The decoder of `node`; `title` is what errors call the message.

    With `locates` a records field becomes the range of its positions instead of a slice.
    """
    source = Source(title, "def decode(buf, pos=0):")
    writer = _Writer(source, keeps_records=has_records(node), locates=locates)
    writer.message(node)
    return source


def _bad_length(what: str, length: int, left: int) -> Malformed:
    if length < 0:
        return Malformed(f"{what} length {length} is not allowed here")
    return Malformed(f"{what} of length {length} does not fit the {left} bytes left")


def _locate(
    error: Exception, title: str, paths: Mapping[int, tuple[Slot, ...]], size: int, pos: int
) -> DecodeError:
    """The `DecodeError` for a failed line: the line number says which field it was about."""
    line = error.__traceback__.tb_lineno if error.__traceback__ else 0
    slots = paths.get(line, ())
    path = slots[0].path if slots else "?"
    if isinstance(error, struct.error):
        for slot in slots:
            path = slot.path
            if pos + WIDTHS[slot.code] > size:
                break
            pos += WIDTHS[slot.code]
        reason = "the bytes end here"
    elif isinstance(error, IndexError):
        reason = "the bytes end here"
    elif isinstance(error, UnicodeDecodeError):
        reason = f"not UTF-8: {error.reason}"
    else:
        reason = str(error)
    return DecodeError(f"{title}, {path}: {reason}", min(pos, size))


class _Writer:
    def __init__(self, source: Source, *, keeps_records: bool, locates: bool) -> None:
        self.source = source
        self.keeps_records = keeps_records
        self.locates = locates
        self.elements_max = ELEMENTS_MAX
        self.pending: list[Slot] = []

    def message(self, node: ObjectNode) -> None:
        source = self.source
        source.names.update(
            new=object.__new__,
            uvarint=read_uvarint,
            varint=read_varint,
            unknown_tagged=read_unknown_tagged,
            bad_length=_bad_length,
            Malformed=Malformed,
            locate=_locate,
            FAILURES=_FAILURES,
            PATHS=source.paths,
            TITLE=source.title,
        )
        # Slicing bytes is cheaper than slicing views, so only records make a message keep a view.
        if self.keeps_records:
            with source.block("if buf.__class__ is not memoryview:"):
                source.line("buf = memoryview(buf)")
        else:
            with source.block("if buf.__class__ is not bytes:"):
                source.line("buf = bytes(buf)")
        source.line("size = len(buf)")
        is_request = node.cls.__name__.endswith("Request")
        self.elements_max = REQUEST_ELEMENTS_MAX if is_request else ELEMENTS_MAX
        source.line(f"budget = {self.elements_max}")
        with source.block("try:"):
            result = self.object(node, "")
            source.line(f"return {result}, pos")
        with source.block("except FAILURES as error:"):
            source.line("raise locate(error, TITLE, PATHS, size, pos) from None")

    def flush(self) -> None:
        """Read what waits in one go."""
        slots, self.pending = self.pending, []
        if not slots:
            return
        width = sum(WIDTHS[slot.code] for slot in slots)
        if len(slots) == 1 and slots[0].code in "B?":
            test = " != 0" if slots[0].code == "?" else ""
            self.source.fixed(f"{slots[0].expression} = buf[pos]{test}", slots)
        else:
            targets = ", ".join(slot.expression for slot in slots) + (
                "," if len(slots) == 1 else ""
            )
            unpack = self.source.bind_struct("read", "unpack_from", "".join(s.code for s in slots))
            self.source.fixed(f"{targets} = {unpack}(buf, pos)", slots)
        self.source.line(f"pos += {width}")

    def object(self, node: ObjectNode, path: str) -> str:
        """Write the decoding of a struct; the name of the local that holds the object."""
        source = self.source
        self.flush()
        var = source.fresh("o")
        cls = source.bind(node.cls.__name__, node.cls)
        source.line(f"{var} = new({cls})")
        members = {member.name: member.subcon for member in node.subcon.subcons}
        tagged = members.pop("tagged_fields", None)
        self.defaults(node, var, members)
        for name, subcon in members.items():
            self.value(subcon, f"{var}.{name}", f"{path}{name}")
        if tagged is not None:
            self.tagged(tagged, var, path)
        self.flush()
        return var

    def defaults(self, node: ObjectNode, var: str, members: Mapping[str, Any]) -> None:
        """Fill the fields that this version lacks or may leave out."""
        shared: dict[str, list[str]] = {"None": [f"{var}.unknown_tagged_fields"]}
        for item in node.cls.__fields__:
            if item.name not in members:
                shared.setdefault(self.default(item), []).append(f"{var}.{item.name}")
        for expression, targets in shared.items():
            if expression.endswith(("[]", "()")):
                for target in targets:
                    self.source.line(f"{target} = {expression}")
            else:
                self.source.line(f"{' = '.join(targets)} = {expression}")

    def default(self, item: Field) -> str:
        if item.default_is_fresh:
            kind = item.kind
            return f"{self.source.bind(kind.__name__, kind)}()" if isinstance(kind, type) else "[]"
        if item.default is None or isinstance(item.default, (int, float, str, bytes)):
            return repr(item.default)
        raise TypeError(f"{item.name} has a default of a kind that no field has")

    def value(self, node: Any, target: str, path: str) -> None:
        code = fixed_code(node)
        if code is not None:
            self.pending.append(Slot(code, target, path))
        elif isinstance(node, LengthPrefixed):
            self.counted(node, target, path)
        elif isinstance(node, NullableNode):
            self.nullable(node, target, path)
        elif isinstance(node, ObjectNode):
            self.source.line(f"{target} = {self.object(node, path + '.')}")
        elif isinstance(node, (UnsignedVarint, SignedVarint)):
            self.flush()
            call = (
                f"varint(buf, pos, {node.bits})"
                if isinstance(node, SignedVarint)
                else ("uvarint(buf, pos)")
            )
            self.source.line(f"{target}, pos = {call}", path)
        else:
            raise TypeError(f"{path}: no decoding is known for {node!r}")

    def nullable(self, node: NullableNode, target: str, path: str) -> None:
        self.flush()
        also_0 = " or not buf[pos]" if node.is_null(0) else ""
        with self.source.block(f"if buf[pos] > 127{also_0}:", path):
            self.source.line("pos += 1")
            self.source.line(f"{target} = None")
        with self.source.block("else:"):
            self.source.line("pos += 1")
            self.source.line(f"{target} = {self.object(node.subcon, path + '.')}")

    def length(self, node: LengthPrefixed, path: str) -> str:
        """Write the reading of a length; the local that holds it, still one higher if compact."""
        var = self.source.fresh("n")
        if not node.compact:
            self.pending.append(Slot(node.length.code, var, path))
            self.flush()
            return var
        self.pending.append(Slot("B", var, path))
        self.flush()
        with self.source.block(f"if {var} > 127:"):
            self.source.line(f"{var}, pos = uvarint(buf, pos - 1)", path)
            if isinstance(node, StringNode):
                with self.source.block(f"if {var} > {STRING_LENGTH_MAX + 1}:"):
                    self.source.line(
                        f'raise Malformed(f"string length {{{var} - 1}} is too long")', path
                    )
        return var

    def counted(self, node: LengthPrefixed, target: str, path: str) -> None:
        """Generate the decoding of a value with its length before it."""
        source = self.source
        var = self.length(node, path)
        if isinstance(node, ArrayNode):
            if node.compact:
                source.line(f"{var} -= 1")
            scaled = var if node.unit == 1 else f"{var} * {node.unit}"
            with source.block(f"if 0 <= {scaled} <= size - pos:"):
                self.elements(node, target, var, path)
            shown, null = var, -1
        else:
            added = " - 1" if node.compact else ""
            source.line(f"end = pos + {var}{added}")
            with source.block("if pos <= end <= size:"):
                source.line(f"{target} = {self.slice(node)}", path)
                source.line("pos = end")
            shown, null = f"{var}{added}", 0 if node.compact else -1
        if node.nullable:
            with source.block(f"elif {var} == {null}:"):
                source.line(f"{target} = None")
        with source.block("else:"):
            source.line(f'raise bad_length("{node.what}", {shown}, size - pos)', path)

    def slice(self, node: LengthPrefixed) -> str:
        if isinstance(node, StringNode):
            return 'str(buf[pos:end], "utf-8")' if self.keeps_records else "buf[pos:end].decode()"
        if isinstance(node, BytesNode) and self.keeps_records and not node.records:
            return "bytes(buf[pos:end])"
        if isinstance(node, BytesNode) and node.records and self.locates:
            return "range(pos, end)"
        return "buf[pos:end]"

    def elements(self, node: ArrayNode, target: str, count: str, path: str) -> None:
        source = self.source
        element = node.element
        code = fixed_code(element)
        self.spend(count, path)
        if code in _NUMBERS:
            numbers = source.bind(f"numbers_{code}", _NUMBERS[code])
            source.line(f"{target} = [*{numbers}[{count}](buf, pos)]", f"{path}[]")
            source.line(f"pos += {count} * {WIDTHS[code]}")
            return
        items = source.fresh("v")
        source.line(f"{items} = {target} = []")
        with source.block(f"for _ in range({count}):"):
            if isinstance(element, ObjectNode):
                source.line(f"{items}.append({self.object(element, path + '[].')})")
            else:
                item = source.fresh("x")
                self.value(element, item, f"{path}[]")
                self.flush()
                source.line(f"{items}.append({item})")

    def spend(self, count: str, path: str) -> None:
        """Write the counting of elements, which are few in all but hostile messages."""
        self.source.line(f"budget -= {count}")
        with self.source.block("if budget < 0:"):
            reason = f"the message has more than {self.elements_max} elements"
            self.source.line(f'raise Malformed("{reason}")', path)

    def tagged(self, node: TaggedFieldsNode, var: str, path: str) -> None:
        """Generate the decoding of a section of tagged fields, which is nearly always empty."""
        source = self.source
        path += "tagged fields"
        count = source.fresh("n")
        self.pending.append(Slot("B", count, path))
        self.flush()
        if not node.known:
            with source.block(f"if {count}:"):
                source.line(
                    f"{var}.unknown_tagged_fields, pos = unknown_tagged(buf, pos - 1)", path
                )
                self.spend(f"len({var}.unknown_tagged_fields or ())", path)
            return
        with source.block(f"if {count}:"):
            with source.block(f"if {count} > 127:"):
                source.line(f"{count}, pos = uvarint(buf, pos - 1)", path)
            with source.block(f"if {count} * 2 > size - pos:"):
                source.line(f'raise bad_length("count", {count}, size - pos)', path)
            self.spend(count, path)
            unknown = source.fresh("u")
            source.line(f"{unknown} = {{}}")
            with source.block(f"for _ in range({count}):"):
                self.tagged_entry(node, var, unknown, path)
            with source.block(f"if {unknown}:"):
                source.line(f"{var}.unknown_tagged_fields = {unknown}")

    def tagged_entry(self, node: TaggedFieldsNode, var: str, unknown: str, path: str) -> None:
        source = self.source
        stop = source.fresh("stop")
        source.line("tag, pos = uvarint(buf, pos)", path)
        source.line("length, pos = uvarint(buf, pos)", path)
        source.line(f"{stop} = pos + length")
        with source.block(f"if {stop} > size:"):
            source.line('raise bad_length("tagged field", length, size - pos)', path)
        keyword = "if"
        for known in node.known:
            with source.block(f"{keyword} tag == {known.tag}:"):
                self.value(known.node, f"{var}.{known.name}", known.name)
                self.flush()
                with source.block(f"if pos != {stop}:"):
                    source.line(
                        f'raise Malformed(f"its size says it ends at {{{stop}}}")', known.name
                    )
            keyword = "elif"
        with source.block("else:"):
            source.line(f"{unknown}[tag] = bytes(buf[pos:{stop}])")
            source.line(f"pos = {stop}")


def has_records(node: Any) -> bool:
    """Whether there is a records field anywhere below `node`."""
    if isinstance(node, BytesNode):
        return node.records
    if isinstance(node, ArrayNode):
        return has_records(node.element)
    if isinstance(node, cs.Struct):
        return any(has_records(member) for member in node.subcons)
    if isinstance(node, TaggedFieldsNode):
        return any(has_records(known.node) for known in node.known)
    return isinstance(node, cs.Subconstruct) and has_records(node.subcon)

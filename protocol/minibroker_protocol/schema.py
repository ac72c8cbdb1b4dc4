"""Declarations of messages: classes whose annotated fields are the schema.

Owns the declaration language (`Struct`, `Message`, `field`, `array`) and its results: slotted
classes that are cheap to create and pickle, and a construct tree for every version. It must never
know a particular message. Invariant: a field is declared once, and everything else (construct's
interpretation, the generated codecs, defaults, the dissector's names) follows from that
declaration. Kafka's message generator, ``org.apache.kafka.message.MessageGenerator``.
"""

from __future__ import annotations

import functools
import operator
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar, dataclass_transform

import construct as cs

from minibroker_protocol.errors import UnsupportedVersion
from minibroker_protocol.meanings import Meaning, NameByType
from minibroker_protocol.types import (
    NullableNode,
    ObjectNode,
    Tagged,
    TaggedFieldsNode,
    Type,
    array_node,
)

# Version ranges -----------------------------------------------------------------------------------
#
# As Kafka's schema files write them: ``"3+"``, ``"0-12"``, ``"4"`` or ``""``. A range is never
# reversed; the empty range (low above high) contains nothing. Kafka's
# ``org.apache.kafka.message.Versions``.


HIGHEST_VERSION: Final = 32767  # an int16 on the wire, and what "3+" reaches to


class Versions(NamedTuple):
    """An inclusive range of versions."""

    low: int
    high: int

    @staticmethod
    def parse(text: str) -> Versions:
        """Read Kafka's notation; ``""`` and ``"none"`` are the empty range."""
        return _parse_versions(text)

    def has(self, version: int) -> bool:
        """Whether `version` is in the range."""
        return self.low <= version <= self.high

    def __str__(self) -> str:
        if self.low > self.high:
            return "none"
        if self.high == HIGHEST_VERSION:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


NO_VERSIONS: Final = Versions(0, -1)
_VERSION_RANGE: Final = re.compile(r"(?P<low>\d+)(?:(?P<open>\+)|-(?P<high>\d+))?")


@functools.cache
def _parse_versions(text: str) -> Versions:
    if text in ("", "none"):
        return NO_VERSIONS
    found = _VERSION_RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no version range like '3+', '0-12' or '4'")
    low = int(found["low"])
    high = HIGHEST_VERSION if found["open"] else int(found["high"] or low)
    if low > high:
        raise ValueError(f"version range {text!r} runs backwards")
    return Versions(low, high)


# Structs and messages -----------------------------------------------------------------------------

_UNSET: Final[Any] = object()


class Array:
    """The kind of a field that holds a list of `element`."""

    __slots__ = ("element",)

    def __init__(self, element: Kind) -> None:
        self.element = element


Kind = Type | Array | type["Struct"]


class Field:
    """One declared field; its class sets `name`."""

    __slots__ = (
        "default",
        "kind",
        "means",
        "name",
        "nullable",
        "obeyed",
        "secret",
        "tag",
        "tagged",
        "versions",
    )

    def __init__(
        self,
        kind: Kind,
        *,
        versions: Versions,
        nullable: Versions,
        tagged: Versions,
        tag: int | None,
        default: Any,
        means: Meaning | NameByType | None,
        secret: bool,
        obeyed: Versions,
    ) -> None:
        self.name = ""
        self.kind = kind
        self.means = means
        self.secret = secret
        self.obeyed = obeyed
        self.versions = versions
        self.nullable = nullable
        self.tagged = tagged
        self.tag = tag
        self.default = default

    def make_default(self) -> Any:
        """A fresh default value, as an object of this field's kind."""
        if self.default is not _UNSET:
            return self.default
        return self.kind() if isinstance(self.kind, type) else []

    @property
    def default_is_fresh(self) -> bool:
        """Whether every object needs a default of its own (a list or a struct)."""
        return self.default is _UNSET

    def is_default(self, value: Any) -> bool:
        """Whether `value` says no more than leaving the field out does."""
        if value is not None and isinstance(self.kind, type):
            return bool(value == self.kind())
        return bool(value == self.make_default())


def array(element: Kind) -> Array:
    """A list of `element`, which is a primitive or a Struct class."""
    return Array(element)


def field(
    kind: Kind | Array,
    *,
    means: Meaning | NameByType | None = None,
    secret: bool = False,
    obeyed: str = "0+",
    versions: str = "0+",
    nullable: str = "",
    tagged: str = "",
    tag: int | None = None,
    default: Any = _UNSET,
) -> Any:
    """Declare a field: its type, what it means, and its versions, nullable versions and tag.

    ``secret`` fields must never be shown, logged or stored for people. ``obeyed`` are the versions
    in which a client obeys a throttle time (KIP-219).

    The default is the value in versions without the field: Kafka's default if its schema has one,
    else zero, the empty string, an empty list or a struct of defaults.
    """
    if default is _UNSET and isinstance(kind, Type):
        default = kind.default
    tagged_versions = Versions.parse(tagged)
    present = Versions.parse(versions)
    if tagged and versions == "0+":
        present = tagged_versions
    return Field(
        kind,
        versions=present,
        nullable=Versions.parse(nullable),
        tagged=tagged_versions,
        tag=tag,
        default=default,
        means=means,
        secret=secret,
        obeyed=Versions.parse(obeyed),
    )


def _install_init(cls: type[Struct]) -> None:
    """Give `cls` an `__init__` and a `__fill__` of its own; done when the first object is made.

    Written out as source they take a third of the time that loops over the fields take, and
    writing them at class creation would make importing the message modules slow.
    """
    names: tuple[str, ...] = cls.__slots__
    environment: dict[str, Any] = {"UNSET": _UNSET}
    parameters = []
    lines = []
    for item in cls.__fields__:
        name = item.name
        if item.default_is_fresh:
            parameters.append(f"{name}=UNSET")
            kind = item.kind
            fresh = "[]"
            if isinstance(kind, type):
                environment[f"make_{name}"] = kind
                fresh = f"make_{name}()"
            lines.append(f"    self.{name} = {fresh} if {name} is UNSET else {name}")
        else:
            environment[f"default_{name}"] = item.default
            parameters.append(f"{name}=default_{name}")
            lines.append(f"    self.{name} = {name}")
    parameters.append("unknown_tagged_fields=None")
    lines.append("    self.unknown_tagged_fields = unknown_tagged_fields")
    targets = ", ".join(f"self.{name}" for name in (*names, "unknown_tagged_fields"))
    source = (
        f"def __init__(self, *, {', '.join(parameters)}):\n" + "\n".join(lines) + "\n"
        f"def __fill__(self, values):\n    {targets}, = values\n"
    )
    exec(source, environment)  # noqa: S102 - made of our own declarations only
    getter = operator.attrgetter(*names, "unknown_tagged_fields")
    values = getter if names else (lambda self: (self.unknown_tagged_fields,))
    type.__setattr__(cls, "__init__", environment["__init__"])
    type.__setattr__(cls, "__fill__", environment["__fill__"])
    type.__setattr__(cls, "__values__", staticmethod(values))


@dataclass_transform(kw_only_default=True)
class _StructType(type):
    """Turns annotated fields into slots and keeps their declarations in ``__fields__``."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> _StructType:
        if any(getattr(base, "__fields__", ()) for base in bases):
            raise TypeError(f"{name} extends a class with fields; declare all of its own")
        fields = []
        for key, value in list(namespace.items()):
            if isinstance(value, Field):
                value.name = key
                fields.append(namespace.pop(key))
        namespace["__fields__"] = tuple(fields)
        if bases:
            namespace["__slots__"] = tuple(item.name for item in fields)
        return super().__new__(mcs, name, bases, namespace, **options)


def _restore(cls: type[Struct], *values: Any) -> Struct:
    instance = cls.__new__(cls)
    instance.__fill__(values)
    return instance


class Struct(metaclass=_StructType):
    """A group of fields. Objects compare by value, have a readable repr, and can be pickled.

    One class represents all versions of a struct. A field that a version lacks has its default when
    that version is decoded and is omitted when it is encoded. Unknown tagged fields are kept as
    bytes by tag and written back.
    """

    __slots__ = ("unknown_tagged_fields",)
    __fields__: ClassVar[tuple[Field, ...]]

    if TYPE_CHECKING:
        # To a type checker a field like others, with a default; at run time a slot can't have one.
        unknown_tagged_fields: dict[int, bytes] | None = None

    def __init__(self, **values: Any) -> None:
        _install_init(type(self))
        self.__init__(**values)  # type: ignore[misc]

    def __fill__(self, values: tuple[Any, ...]) -> None:
        _install_init(type(self))
        self.__fill__(values)

    def __values__(self) -> tuple[Any, ...]:
        _install_init(type(self))
        return type(self).__values__(self)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        values = type(self).__values__
        return values(self) == values(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = [f"{item.name}={getattr(self, item.name)!r}" for item in self.__fields__]
        if self.unknown_tagged_fields:
            values.append(f"unknown_tagged_fields={self.unknown_tagged_fields!r}")
        return f"{type(self).__name__}({', '.join(values)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), *type(self).__values__(self))


class Message(Struct):
    """An independent struct: a request, a response, a header, or data in records.

    `versions` are the declared versions, `flexible` those in the compact encoding of KIP-482.
    """

    __slots__ = ()
    __api_key__: ClassVar[int | None] = None
    __versions__: ClassVar[Versions] = NO_VERSIONS
    __flexible__: ClassVar[Versions] = NO_VERSIONS

    def __init_subclass__(
        cls, *, versions: str = "", flexible: str = "", api_key: int | None = None
    ) -> None:
        super().__init_subclass__()
        cls.__api_key__ = api_key
        cls.__versions__ = Versions.parse(versions)
        cls.__flexible__ = Versions.parse(flexible)


MessageT = TypeVar("MessageT", bound=Message)


@functools.cache
def construct_for(cls: type[Message], version: int) -> ObjectNode:
    """The construct tree of one version of a message; `UnsupportedVersion` if there is none."""
    check_version(cls, version)
    return _struct_node(cls, version, cls.__flexible__.has(version))


def check_version(cls: type[Message], version: int) -> None:
    """Raise `UnsupportedVersion` unless `cls` is declared in `version`."""
    if not cls.__versions__.has(version):
        raise UnsupportedVersion(f"{cls.__name__} has versions {cls.__versions__}, not {version}")


def _struct_node(cls: type[Struct], version: int, flexible: bool) -> ObjectNode:
    members = []
    tagged = []
    for item in cls.__fields__:
        if not item.versions.has(version):
            continue
        node = _node(item, version, flexible)
        if flexible and item.tagged.has(version) and item.tag is not None:
            default = item.make_default()
            tagged.append(Tagged(item.tag, item.name, node, default, item.is_default))
        else:
            members.append(item.name / node)
    if flexible:
        members.append("tagged_fields" / TaggedFieldsNode(tuple(tagged)))
    return ObjectNode(cls, cs.Struct(*members))


def _node(item: Field, version: int, flexible: bool) -> Any:
    nullable = item.nullable.has(version)
    kind = item.kind
    if isinstance(kind, Type):
        return kind.node(flexible=flexible, nullable=nullable)
    if isinstance(kind, Array):
        element = kind.element
        if isinstance(element, Type):
            inner = element.node(flexible=flexible, nullable=False)
        elif isinstance(element, Array):
            raise TypeError(f"{item.name}: Kafka has no arrays of arrays")
        else:
            inner = _struct_node(element, version, flexible)
        return array_node(inner, flexible=flexible, nullable=nullable)
    node = _struct_node(kind, version, flexible)
    is_tagged = flexible and item.tagged.has(version)
    return NullableNode(node, tagged=is_tagged) if nullable else node

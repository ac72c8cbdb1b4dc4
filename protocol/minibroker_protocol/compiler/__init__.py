"""Codecs for traffic: one flat Python function for each message, version and direction.

Owns the compilation of a message's construct tree to functions, at the first use of a version, and
their cache. It must never declare anything. Invariant: a generated function and construct's
interpretation of the same tree agree on every input, and any bytes result in an object or a
`DecodeError`. Kafka generates the same ahead of time, in
``org.apache.kafka.message.MessageDataGenerator``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sized
from typing import Any, TypeAlias, TypeVar, cast

from minibroker_protocol.compiler import decoding, encoding
from minibroker_protocol.errors import EncodeError
from minibroker_protocol.schema import Message, construct_for
from minibroker_protocol.wire import Buffer

MessageT = TypeVar("MessageT", bound=Message)

# Bytes, or whatever stood in a records field: something with a length that the sender knows.
Chunk: TypeAlias = "bytes | bytearray | memoryview | Sized"
Decoder: TypeAlias = Callable[..., tuple[MessageT, int]]
Encoder: TypeAlias = Callable[[Message], list[Chunk]]


def decoder(cls: type[MessageT], version: int) -> Decoder[MessageT]:
    """``decode(buf, pos=0) -> (message, position after it)`` for one version.

    `buf` holds bytes; a memoryview must be one of bytes too. Records fields become memoryviews of
    `buf`, everything else is copied out of it. `UnsupportedVersion` here, `DecodeError` there.
    """
    return cast("Decoder[MessageT]", _decoder(cls, version, locates=False))


def locating_decoder(cls: type[MessageT], version: int) -> Decoder[MessageT]:
    """As `decoder`, but a records field becomes the ``range`` of its positions in `buf`.

    For a broker that passes positions of records to another process instead of the records.
    """
    return cast("Decoder[MessageT]", _decoder(cls, version, locates=True))


def encoder(cls: type[Message], version: int) -> Encoder:
    """Return ``encode(message) -> chunks`` for one version; the lengths of the chunks add up.

    The value of a records field is a separate chunk, of which only the length is used, and the
    bytes between two of them are one chunk. Raises `UnsupportedVersion` here, `EncodeError` there.
    """
    return _encoder(cls, version)


def decode(cls: type[MessageT], version: int, buf: Buffer, pos: int = 0) -> MessageT:
    """Decode the message at `pos`; the bytes after it are ignored."""
    return decoder(cls, version)(buf, pos)[0]


def encode(message: Message, version: int) -> bytes:
    """The whole message as bytes; `EncodeError` if a records field holds something else."""
    chunks = _encoder(type(message), version)(message)
    try:
        return b"".join(cast("list[bytes]", chunks))
    except TypeError as error:
        raise EncodeError(f"{type(message).__name__} has records that are not bytes") from error


def decoder_source(cls: type[Message], version: int) -> str:
    """The Python text of the function that `decoder` gives; for people and for tests."""
    return decoding.emit(construct_for(cls, version), f"{cls.__name__} v{version}").text()


def encoder_source(cls: type[Message], version: int) -> str:
    """The Python text of the function that `encoder` gives."""
    return encoding.emit(construct_for(cls, version), f"{cls.__name__} v{version}").text()


@functools.cache
def _decoder(cls: type[Message], version: int, *, locates: bool) -> Decoder[Any]:
    tree = construct_for(cls, version)
    return decoding.emit(tree, f"{cls.__name__} v{version}", locates=locates).function()


@functools.cache
def _encoder(cls: type[Message], version: int) -> Encoder:
    return encoding.emit(construct_for(cls, version), f"{cls.__name__} v{version}").function()

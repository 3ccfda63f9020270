"""The outermost form of every record on an increment or full topic: version, kind, size and checksum, then msgpack.

offset  size  field
0       1     format version, 1 to 3
1       1     kind: one letter, see `records`
2       1     codec: 0 = as it is, 1 = zstd
3       1     reserved, 0
4       4     size of the body before compression, little endian
8       8     xxh3_64 of the body before compression, little endian
16      -     the body
"""

from __future__ import annotations

import struct
import sys

import xxhash

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: the formats that this statehold reads; a partition is written in the format of its last mark (docs/upgrades.md)
OLDEST, NEWEST = 1, 3
#: from this one on a mark may hold users' commands of the control topic
PINNING = 3
#: No body may claim more than this before compression: a frame is an input from the network (fault F27, zip bomb).
#: It is more than kafka.message_max_bytes may be, or a value could be written that no restore would read.
MAX_BODY = 128 * 1024 * 1024
_COMPRESS_FROM = 512
_HEAD = struct.Struct("<BcBBIQ")


class BadFrame(ValueError):
    """The bytes are not a frame that this version wrote, or they were damaged."""


class UnknownFormat(BadFrame):
    """A frame of a format that this version does not know: not damaged, but not to be read either."""

    def __init__(self, version: int) -> None:
        super().__init__(f"format {version}, this statehold reads {OLDEST} to {NEWEST}")
        self.version = version


def pack(kind: bytes, body: bytes, version: int = OLDEST) -> bytes:
    """A frame around `body`; compressed when that can pay."""
    codec, content = 0, body
    if len(body) >= _COMPRESS_FROM:
        codec, content = 1, zstd.compress(body, 1)
    return _HEAD.pack(version, kind, codec, 0, len(body), checksum(body)) + content


def kind_of(data: bytes | None) -> bytes:
    """The kind letter, without touching the body.

    :raises BadFrame: for no data, or too little. :raises UnknownFormat: for an unknown format version.
    """
    if data is None or len(data) < _HEAD.size:
        raise BadFrame("too short for a frame")
    if not OLDEST <= data[0] <= NEWEST:
        raise UnknownFormat(data[0])
    return data[1:2]


def unpack(data: bytes) -> bytes:
    """The body of a frame, its size and checksum verified.

    :raises BadFrame: when anything about it is not as written.
    """
    kind_of(data)
    if data[3] != 0:
        raise BadFrame("its reserved byte is not 0")
    return _body(data)


def foreign_body(data: bytes) -> tuple[bytes, bytes]:
    """Kind and body of a frame of whatever format: head, codecs and checksum stay as they are in all of them.

    Only for telling who wrote it. :raises BadFrame: it is not a frame, or damaged.
    """
    if len(data) < _HEAD.size:
        raise BadFrame("too short for a frame")
    return data[1:2], _body(data)


def _body(data: bytes) -> bytes:
    _, _, codec, _, size, expected = _HEAD.unpack_from(data)
    if size > MAX_BODY:
        raise BadFrame(f"claims {size} bytes, more than the limit of {MAX_BODY}")
    body = data[_HEAD.size :]
    if codec == 1:
        body = _decompress(body, size)
    elif codec != 0:
        raise BadFrame(f"unknown codec {codec}")
    if len(body) != size or checksum(body) != expected:
        raise BadFrame("checksum differs")
    return body


def body_checksum(data: bytes) -> int:
    """The checksum that the frame carries, for lists of chunks."""
    value: int = _HEAD.unpack_from(data)[5]
    return value


def checksum(body: bytes) -> int:
    return xxhash.xxh3_64_intdigest(body)


def _decompress(content: bytes, size: int) -> bytes:
    try:
        return zstd.ZstdDecompressor().decompress(content, max_length=size + 1)
    except zstd.ZstdError as error:
        raise BadFrame(f"zstd: {error}") from error

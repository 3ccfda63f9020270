"""The outermost form of every record on an increment or full topic: version, kind, size and checksum, then msgpack.

offset  size  field
0       1     format version, 1
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

VERSION = 1
#: No body may claim more than this before compression: a frame is an input from the network (fault F27, zip bomb).
MAX_BODY = 64 * 1024 * 1024
_COMPRESS_FROM = 512
_HEAD = struct.Struct("<BcBBIQ")


class BadFrame(ValueError):
    """The bytes are not a frame that this version wrote, or they were damaged."""


def pack(kind: bytes, body: bytes) -> bytes:
    """A frame around `body`; compressed when that can pay."""
    codec, content = 0, body
    if len(body) >= _COMPRESS_FROM:
        codec, content = 1, zstd.compress(body, 1)
    return _HEAD.pack(VERSION, kind, codec, 0, len(body), checksum(body)) + content


def kind_of(data: bytes | None) -> bytes:
    """The kind letter, without touching the body.

    :raises BadFrame: for no data, a short one, or an unknown format version.
    """
    if data is None or len(data) < _HEAD.size:
        raise BadFrame("too short for a frame")
    if data[0] != VERSION:
        raise BadFrame(f"format version {data[0]}, this holdfast reads {VERSION}")
    return data[1:2]


def unpack(data: bytes) -> bytes:
    """The body of a frame, its size and checksum verified.

    :raises BadFrame: when anything about it is not as written.
    """
    kind_of(data)
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

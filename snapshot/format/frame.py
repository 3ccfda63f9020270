"""Packs and unpacks the frame around every record of the changelog and snapshot topics.

offset  size  field
0       1     format version, 1 to 7
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

#: The formats that this release reads. A partition is written in the format of its last commit record
#: (docs/how-to/state/upgrades.md).
OLDEST, NEWEST = 1, 7
#: the first format in which a commit record may hold users' commands of the control topic
PINNING = 3
#: the first format in which a partition may have several inputs
SEVERAL_INPUTS = 4
#: the first format in which commit records carry the types of the tables
TYPED = 5
#: the first format in which a commit record may limit the time to which its records advance the partition's
LIMITED = 6
#: releases that read it remove rows of joins by segments, at the end of a transaction; earlier ones one by one
SEGMENTS = 6
#: the first format in which a full snapshot may share the chunks of earlier ones, so that a later chunk replaces or
#: deletes rows of an earlier one
SHARED = 7
#: The largest body before compression. The limit exists because a frame comes from the network (fault F27, zip bomb).
#: It exceeds the largest kafka.message_max_bytes, because otherwise a written value could be too large to restore.
MAX_BODY = 128 * 1024 * 1024
_COMPRESS_FROM = 512
_HEAD = struct.Struct("<BcBBIQ")
checksum = xxhash.xxh3_64_intdigest


class BadFrame(ValueError):
    """The bytes are damaged, or this release did not write them."""


class UnknownFormat(BadFrame):
    """The frame has a format that this release does not know. It is not damaged, but it cannot be read."""

    def __init__(self, version: int) -> None:
        super().__init__(f"format {version}, this statehold reads {OLDEST} to {NEWEST}")
        self.version = version


def pack(kind: bytes, body: bytes, version: int = OLDEST, repeated: int = 0) -> bytes:
    """Return a frame around `body`; a large body is compressed.

    `repeated`: bytes that the frame before has, too; the producer compresses those of many frames for less.
    """
    codec, content = 0, body
    if len(body) - repeated >= _COMPRESS_FROM:
        codec, content = 1, zstd.compress(body, 1)
    return _HEAD.pack(version, kind, codec, 0, len(body), checksum(body)) + content


def kind_of(data: bytes | None) -> bytes:
    """Return the kind letter without reading the body.

    :raises BadFrame: the data is too short. :raises UnknownFormat:
    """
    if data is None or len(data) < _HEAD.size:
        raise BadFrame("too short for a frame")
    if not OLDEST <= data[0] <= NEWEST:
        raise UnknownFormat(data[0])
    return data[1:2]


def unpack(data: bytes | None, *, any_format: bool = False) -> tuple[bytes, bytes]:
    """Return kind and body of a frame, after checking its size and checksum.

    `any_format` reads a frame of an unknown format too, because head, codecs and checksum are the same in all of them.
    Use it only to find out who wrote the frame.

    :raises BadFrame: the bytes are not a frame, or damaged. :raises UnknownFormat: unless `any_format`.
    """
    if data is None or len(data) < _HEAD.size:
        raise BadFrame("too short for a frame")
    version, kind, codec, reserved, size, expected = _HEAD.unpack_from(data)
    if not any_format:
        if not OLDEST <= version <= NEWEST:
            raise UnknownFormat(version)
        if reserved != 0:
            raise BadFrame("its reserved byte is not 0")
    if size > MAX_BODY:
        raise BadFrame(f"claims {size} bytes, more than the limit of {MAX_BODY}")
    body = data[_HEAD.size :]
    if codec == 1:
        body = _decompress(body, size)
    elif codec != 0:
        raise BadFrame(f"unknown codec {codec}")
    if len(body) != size or checksum(body) != expected:
        raise BadFrame("checksum differs")
    return kind, body


def body_checksum(data: bytes) -> int:
    """Return the checksum in the head of a frame; manifests list these."""
    value: int = _HEAD.unpack_from(data)[5]
    return value


def _decompress(content: bytes, size: int) -> bytes:
    try:
        return zstd.ZstdDecompressor().decompress(content, max_length=size + 1)
    except zstd.ZstdError as error:
        raise BadFrame(f"zstd: {error}") from error

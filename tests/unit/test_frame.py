"""The outermost form of a record: whatever is not as written is refused, never read as something else."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statehold.config.sources import known_options
from statehold.snapshot.format import frame
from statehold.snapshot.format.frame import BadFrame, UnknownFormat, pack, unpack

bodies = st.binary(max_size=3000) | st.integers(0, 9000).map(lambda size: b"statehold " * (size // 9))


@given(bodies, st.sampled_from([b"H", b"M", b"C"]))
def test_packing_and_unpacking_return_the_same_value(body: bytes, kind: bytes) -> None:
    data = pack(kind, body)
    assert frame.kind_of(data) == kind
    assert unpack(data) == (kind, body)
    assert frame.body_checksum(data) == frame.checksum(body)


@given(bodies, st.data())
@settings(max_examples=300, deadline=None)
def test_a_flipped_bit_is_noticed_or_harmless(body: bytes, data: st.DataObject) -> None:
    """The kind letter is checked by what it says; a bit of zstd's header, or an empty body's codec, does not matter."""
    packed = pack(b"M", body)
    bit = data.draw(st.integers(0, 8 * len(packed) - 1))
    damaged = bytearray(packed)
    damaged[bit // 8] ^= 1 << bit % 8
    with suppress(BadFrame):
        assert unpack(bytes(damaged))[1] == body


@given(bodies, st.data())
def test_any_truncation_is_noticed(body: bytes, data: st.DataObject) -> None:
    packed = pack(b"M", body)
    with pytest.raises(BadFrame):
        unpack(packed[: data.draw(st.integers(0, len(packed) - 1))])


@given(st.binary(max_size=200))
def test_garbage_is_rejected_and_nothing_else_is_raised(data: bytes) -> None:
    with pytest.raises(BadFrame):
        unpack(data)


def test_no_data_is_no_frame() -> None:
    for data in (None, b"", b"\x01M"):
        with pytest.raises(BadFrame, match="too short"):
            frame.kind_of(data)


def test_another_version_is_named() -> None:
    with pytest.raises(UnknownFormat, match=f"format {frame.NEWEST + 1}, this statehold reads 1 to {frame.NEWEST}"):
        unpack(bytes([frame.NEWEST + 1]) + pack(b"M", b"x")[1:])


def test_a_large_body_is_compressed_and_a_small_one_is_not() -> None:
    assert len(pack(b"C", b"x" * 100_000)) < 1000
    assert pack(b"C", b"x" * 100)[2] == 0


def test_any_frame_that_may_be_sent_can_be_read() -> None:
    """A delta's part and a chunk hold one value of at most a message, and some names and numbers."""
    assert known_options()["kafka.message_max_bytes"].high + 1_000_000 < frame.MAX_BODY


def test_a_body_that_claims_too_much_is_not_even_tried() -> None:
    head = struct.pack("<BcBBIQ", 1, b"C", 1, 0, frame.MAX_BODY + 1, 0)
    with pytest.raises(BadFrame, match="more than the limit"):
        unpack(head + b"x")


def test_a_bomb_with_a_false_size_is_cut_short() -> None:
    """20 MB of zeros that claim to be 10 bytes: decompression stops behind the claim."""
    bomb = pack(b"C", bytes(20_000_000))
    lying = struct.pack("<BcBBIQ", 1, b"C", 1, 0, 10, frame.checksum(bytes(10))) + bomb[16:]
    with pytest.raises(BadFrame):
        unpack(lying)


def test_an_unknown_codec_is_rejected() -> None:
    packed = bytearray(pack(b"C", b"x"))
    packed[2] = 9
    with pytest.raises(BadFrame, match="unknown codec 9"):
        unpack(bytes(packed))


def test_the_reserved_byte_must_be_zero() -> None:
    packed = bytearray(pack(b"M", b"body"))
    packed[3] = 0x10
    with pytest.raises(BadFrame, match="reserved byte"):
        unpack(bytes(packed))

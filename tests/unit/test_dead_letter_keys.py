"""How `statehold dlq` writes the keys of dead letters, and reads them: each key of any type has one text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehold.common.visible import key_as_text, key_of_text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"ann", "ann"),
        ("Zoë".encode(), "Zoë"),
        (bytes(7) + b"\7", "hex:0000000000000007"),
        (b"\xff", "hex:ff"),
        (b"hex:ff", "hex:6865783a6666"),
        (None, "-"),
    ],
)
def test_a_key_is_text_or_hexadecimal(key: bytes | None, text: str) -> None:
    assert key_as_text(key) == text


def test_text_that_only_looks_like_hexadecimal_is_text() -> None:
    assert key_of_text("hex:green") == b"hex:green"


@given(st.binary() | st.text().map(str.encode))
def test_a_key_that_is_listed_can_be_named(key: bytes) -> None:
    assert key_of_text(key_as_text(key)) == key
